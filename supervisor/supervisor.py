"""Supervisor: puts the parts together: keepers, a multiplexer over their engines, and the service. The embedder's door.

Owns everything that runs; leaving it leaves nothing behind. Knows no policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from luce.supervisor.config import SupervisorConfig
from luce.supervisor.guard import EngineState
from luce.supervisor.keeper import EngineKeeper
from luce.supervisor.locate import find_luced
from luce.supervisor.multiplexer import Multiplexer
from luce.supervisor.requests import GenerateRequest, RequestEvent
from luce.supervisor.service import Service

if TYPE_CHECKING:
    from luce.supervisor.text import TextModel


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    name: str
    state: EngineState
    pid: int | None
    n_deaths: int
    lanes: int
    n_running: int
    slots: int
    n_slots_used: int
    slot_bytes_used: int
    slowest_step_s: float  # the longest silence that ended well: deadlines follow it
    last_failure: str | None
    load_percent: int | None  # while it starts: how much of the model it has read
    log_tail: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorStatus:
    engines: tuple[EngineStatus, ...]
    n_waiting: int
    n_requests: int
    n_finished: int
    n_failed: int
    n_cancelled: int
    n_resumes: int
    n_tokens: int

    @property
    def is_healthy(self) -> bool:
        """Some engine is ready."""
        return any(engine.state is EngineState.READY for engine in self.engines)


class Supervisor:
    """One model behind one or more engines, for any asyncio program. Use as a context manager.

    Entering it waits until an engine is ready; raises StartError when none can be started, NotInstalledError when there
    is no luced. `on_log` gets each line of the engines' logs.
    """

    def __init__(self, config: SupervisorConfig, *, on_log: Callable[[str], None] | None = None) -> None:
        self.config = config
        self._on_log = on_log
        self._group: asyncio.TaskGroup | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._keepers: list[EngineKeeper] = []
        self._multiplexer = Multiplexer(config, [])
        self._service = Service(self._multiplexer, self._open_text)

    async def __aenter__(self) -> Self:
        if self._group is not None:
            raise RuntimeError("a Supervisor is entered once")
        self._keepers = [
            EngineKeeper(f"engine {number}", engine.binary or self._binary(), self.config, engine, on_log=self._on_log)
            for number, engine in enumerate(self.config.engine_configs())
        ]
        self._multiplexer = Multiplexer(self.config, self._keepers)
        self._service = Service(self._multiplexer, self._open_text)
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        try:
            self._tasks = [
                self._group.create_task(keeper.run(self._multiplexer), name=keeper.name) for keeper in self._keepers
            ]
            await self._wait_until_ready()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        assert self._group is not None
        self._multiplexer.close()
        for task in self._tasks:
            task.cancel()
        try:
            # The group waits; what was raised in the caller's own block is not its business.
            await self._group.__aexit__(None, None, None)
        finally:
            self._service.close()

    def generate(self, request: GenerateRequest) -> AsyncGenerator[RequestEvent, None]:
        """The events of one request: TokenEvents (and PrefillEvents before), FinishedEvent last.

        The request is cancelled when the iterator is left early (with `contextlib.aclosing`, or when it is dropped) or
        its task is cancelled. The death of an engine is not seen but as a pause. Raises RequestError.
        """
        return self._service.generate(request)

    def engine_pids(self) -> list[int]:
        """Of the engines that run now."""
        return [keeper.pid for keeper in self._keepers if keeper.pid is not None]

    async def text(self) -> TextModel:
        """The model's vocabulary and chat template, opened on first use. It is the supervisor's: do not close it."""
        return await self._service.text()

    def status(self) -> SupervisorStatus:
        """How things stand; costs nothing."""
        totals = self._multiplexer.totals
        return SupervisorStatus(
            engines=tuple(self._engine_status(keeper) for keeper in self._keepers),
            n_waiting=self._multiplexer.n_waiting,
            n_requests=totals.n_requests,
            n_finished=totals.n_finished,
            n_failed=totals.n_failed,
            n_cancelled=totals.n_cancelled,
            n_resumes=totals.n_resumes,
            n_tokens=totals.n_tokens,
        )

    def _engine_status(self, keeper: EngineKeeper) -> EngineStatus:
        berth = self._multiplexer.berth(keeper)
        slots = berth.slots
        return EngineStatus(
            name=keeper.name,
            state=keeper.state,
            pid=keeper.pid,
            n_deaths=keeper.n_deaths,
            lanes=berth.n_lanes,
            n_running=len(berth.attempts),
            slots=0 if berth.info is None else berth.info.slots,
            n_slots_used=0 if slots is None else slots.n_used,
            slot_bytes_used=0 if slots is None else slots.bytes_used,
            slowest_step_s=keeper.slowest_step_s,
            last_failure=None if keeper.last_failure is None else str(keeper.last_failure),
            load_percent=keeper.load_percent,
            log_tail=tuple(keeper.log_tail()[-20:]),
        )

    async def _wait_until_ready(self) -> None:
        """Returns when the first engine is ready and every other one has been tried once."""
        errors = await asyncio.gather(*(keeper.first_start for keeper in self._keepers))
        failures = [error for error in errors if error is not None]
        if len(failures) == len(errors):
            raise failures[0]

    def _binary(self) -> Path:
        return find_luced() if self.config.binary is None else self.config.binary

    def _open_text(self) -> TextModel:
        from luce.supervisor.text import TextModel

        return TextModel(self._keepers[0].daemon_config.model)
