"""Fleet: a supervisor for each model, and the task that lets them take turns on the device.

It carries out what `turns` decides. Requests go to a model's own supervisor, whether it is here or not.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from types import TracebackType
from typing import Self

from luce.supervisor.config import ConfigError, SupervisorConfig
from luce.supervisor.engine.process import StartError
from luce.supervisor.fleet.turns import ModelTurn, TurnRules, next_moves
from luce.supervisor.fleet.weight_lock import WeightLock
from luce.supervisor.scheduling.presence import Presence, PresenceState
from luce.supervisor.supervisor import Supervisor
from luce.supervisor.supervisor_status import SupervisorStatus

_LOG = logging.getLogger("luce.fleet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A model of a fleet."""

    name: str
    config: SupervisorConfig
    aliases: tuple[str, ...] = ()
    group: str | None = "device"
    """Models of a group have one place on the device between them; None: it comes at its first request, and stays."""
    resident: bool = False
    """It is loaded when the fleet starts, and never leaves."""
    ends: bool = False
    """It leaves by ending: its conversations are in its disk cache only, and the host's memory is free."""
    locks_weights: bool = False
    """The file of its weights is kept in the host's memory, so that coming costs no reading from disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    members: Sequence[Member]
    rules: TurnRules = field(default_factory=TurnRules)
    drain_s: float | None = 60.0
    """For which answers may go on when their model is to leave; then they wait, and go on when it is back."""

    def __post_init__(self) -> None:
        if not self.members:
            raise ConfigError("a fleet has one model at least")
        taken: set[str] = set()
        for member in self.members:
            for name in (member.name, *member.aliases):
                if name == "":
                    raise ConfigError("a model's name or alias is empty: requests could not ask for it")
                if name in taken:
                    raise ConfigError(f"two models are called {name}: a name or an alias is one model's")
                taken.add(name)
        for group in {member.group for member in self.members} | set(self.rules.most):
            if group is not None:
                self._check_group(group)

    def _check_group(self, group: str) -> None:
        """Each of its models gets a turn."""
        members = [member for member in self.members if member.group == group]
        if not members:
            raise ConfigError(f"groups: no model is in {group}")
        n_resident = sum(member.resident for member in members)
        n_places = self.rules.most.get(group, 1)
        if n_resident > n_places or (n_resident == n_places and n_resident < len(members)):
            raise ConfigError(
                f"group {group}: it has room for {n_places}, and {n_resident} resident models never leave it: give it"
                ' more room under [groups], or the resident ones another group ("": in nobody\'s way)'
            )


class Fleet:
    """Use as a context manager. Entering it loads the resident models; raises StartError where one of them cannot be,
    ConfigError, NotInstalledError. `on_log` gets each line of the engines' logs, with its model's name before it."""

    def __init__(self, config: FleetConfig, *, on_log: Callable[[str], None] | None = None) -> None:
        self.config = config
        self.supervisors: Mapping[str, Supervisor] = {
            member.name: Supervisor(member.config, on_log=_named(on_log, member.name), starts=False)
            for member in config.members
        }
        self._members = {member.name: member for member in config.members}
        self._changed = asyncio.Event()
        self._moving: set[str] = set()
        self._stack = AsyncExitStack()
        self.n_comes = 0
        """How often a model has come."""

    def status(self) -> SupervisorStatus:
        """Of all models together; engines are named after theirs."""
        of_models = {name: supervisor.status() for name, supervisor in self.supervisors.items()}
        statuses = of_models.values()
        return SupervisorStatus(
            engines=tuple(
                replace(engine, name=f"{name} {engine.name}")
                for name, status in of_models.items()
                for engine in status.engines
            ),
            n_waiting=sum(status.n_waiting for status in statuses),
            n_requests=sum(status.n_requests for status in statuses),
            n_finished=sum(status.n_finished for status in statuses),
            n_failed=sum(status.n_failed for status in statuses),
            n_cancelled=sum(status.n_cancelled for status in statuses),
            n_resumes=sum(status.n_resumes for status in statuses),
            n_tokens=sum(status.n_tokens for status in statuses),
            n_moves=sum(status.n_moves for status in statuses),
            n_failed_moves=sum(status.n_failed_moves for status in statuses),
            n_moved_tokens=sum(status.n_moved_tokens for status in statuses),
            n_moved_bytes=sum(status.n_moved_bytes for status in statuses),
            embeddings=tuple(model for status in statuses for model in status.embeddings),
            cache_stores=tuple(store for status in statuses for store in status.cache_stores),
        )

    async def engine_status(self, timeout_s: float = 1.0) -> list[dict[str, str]]:
        """As Supervisor.engine_status, in the order of `status().engines`."""
        said = await asyncio.gather(*(one.engine_status(timeout_s) for one in self.supervisors.values()))
        return list(chain.from_iterable(said))

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for name, supervisor in self.supervisors.items():
                await stack.enter_async_context(supervisor)
                supervisor.presence.on_change = self._changed.set
                if self._members[name].locks_weights:
                    lock = await asyncio.to_thread(WeightLock.of, self._members[name].config.model)
                    stack.callback(lock.close)
            for member in self.config.members:
                if member.resident:
                    await self.supervisors[member.name].presence.come()
            group = await asyncio.TaskGroup().__aenter__()
            # Not told of the block's own errors, which it would wrap.
            stack.push_async_callback(group.__aexit__, None, None, None)
            stack.callback(group.create_task(self._take_turns(), name="whose turn it is").cancel)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def _take_turns(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                now_s = time.monotonic()
                moves = next_moves([self._turn(member) for member in self.config.members], self.config.rules, now_s)
                for name in moves.come:
                    self._begin(group, name, self._come(name))
                for name in moves.leave:
                    self._begin(group, name, self._leave(name))
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if moves.again_s is None else moves.again_s - now_s):
                        await self._changed.wait()

    def _begin(self, group: asyncio.TaskGroup, name: str, move: Coroutine[None, None, None]) -> None:
        self._moving.add(name)

        def end(_: asyncio.Task[None]) -> None:
            self._moving.discard(name)
            self._changed.set()

        group.create_task(move, name=f"{name} moves").add_done_callback(end)

    async def _come(self, name: str) -> None:
        began_s = time.monotonic()
        try:
            await self.supervisors[name].presence.come()
        except StartError as error:
            _LOG.error("%s cannot be loaded: %s", name, error)
        else:
            self.n_comes += 1
            _LOG.info("%s was loaded in %.1f s", name, time.monotonic() - began_s)

    async def _leave(self, name: str) -> None:
        began_s = time.monotonic()
        await self.supervisors[name].presence.leave(ends=self._members[name].ends, drain_s=self.config.drain_s)
        _LOG.info("%s was unloaded in %.1f s", name, time.monotonic() - began_s)

    def _turn(self, member: Member) -> ModelTurn:
        presence = self.supervisors[member.name].presence
        has_work = presence.n_waiting > 0 or presence.n_running > 0
        return ModelTurn(
            name=member.name,
            group=member.group,
            state=self._state(member.name, presence),
            stays=member.resident,
            since_s=presence.since_s,
            idle_since_s=None if has_work else presence.idle_since_s,
            waits_since_s=presence.waits_since_s,
        )

    def _state(self, name: str, presence: Presence) -> PresenceState:
        """A move that has been begun counts, also before its task runs."""
        if name not in self._moving or presence.state in {PresenceState.COMING, PresenceState.LEAVING}:
            return presence.state
        return PresenceState.COMING if presence.state is PresenceState.AWAY else PresenceState.LEAVING


def _named(on_log: Callable[[str], None] | None, name: str) -> Callable[[str], None] | None:
    return None if on_log is None else lambda line: on_log(f"{name}: {line}")
