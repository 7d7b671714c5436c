"""Presence: whether a model is on its device. It leaves in order, its conversations kept, and comes back to them.

While it is away requests wait in the queue as they do for a lane. Who is to leave, and when, it must not know.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from enum import StrEnum

from luce.protocol import ErrorCode
from luce.supervisor.engine.generation import EngineDied, EngineError
from luce.supervisor.engine.monitor import EngineMonitor
from luce.supervisor.engine.process import StartError
from luce.supervisor.engine.watchdog import EngineState
from luce.supervisor.requests import EngineFailedError, SupervisorClosedError
from luce.supervisor.scheduling.engine_handle import EngineHandle
from luce.supervisor.scheduling.multiplexer import Multiplexer

_LOG = logging.getLogger("luce.scheduling")
_MOST_STARTS = 5
"""Of an engine that somebody kills while it loads."""


class PresenceState(StrEnum):
    HERE = "here"
    LEAVING = "leaving"
    AWAY = "away"
    COMING = "coming"


class Presence:
    """Of one supervisor's engines, together. One `leave` or `come` at a time."""

    def __init__(self, multiplexer: Multiplexer, monitors: Sequence[EngineMonitor], *, is_here: bool) -> None:
        self._multiplexer = multiplexer
        self._monitors = list(monitors)
        self._changed = asyncio.Event()
        self._arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._n_errands = self._n_wanting = 0
        self.on_change: Callable[[], None] = lambda: None
        """Called after something has come, started, ended or died."""
        self.state = PresenceState.HERE
        self.since_s = self.idle_since_s = time.monotonic()
        """When it became what it is; when something ran last."""
        self.waits_since_s: float | None = None
        """Since when somebody has waited for it to be here."""
        multiplexer.on_change = self._note_change
        if is_here:
            self._arrival.set_result(None)
            return
        self._hold(held=True)
        self._become(PresenceState.AWAY)

    @property
    def n_waiting(self) -> int:
        return self._multiplexer.n_waiting + self._n_wanting

    @property
    def n_running(self) -> int:
        return self._multiplexer.n_running + self._n_errands

    @asynccontextmanager
    async def errand(self) -> AsyncIterator[None]:
        """Around what an engine is asked beside requests: it is here meanwhile. Raises EngineFailedError where it
        cannot come, SupervisorClosedError."""
        self._n_wanting += 1
        self._note_change()
        try:
            await asyncio.shield(self._arrival)
        finally:
            self._n_wanting -= 1
        self._n_errands += 1
        try:
            yield
        finally:
            self._n_errands -= 1
            self._note_change()

    def close(self) -> None:
        """It will never be here again."""
        self._fail_errands(SupervisorClosedError("the supervisor has been left"))

    async def leave(self, *, ends: bool, drain_s: float | None) -> None:
        """Nothing new starts. What runs may end for so long (None: for as long as it takes), then it is set aside, to
        go on once it is back. Then the engines give the device's memory back and keep their texts in the host's; or,
        with `ends`, they end, and keep what a disk cache holds. REQUIRES: it is here."""
        self._become(PresenceState.LEAVING)
        self._hold(held=True)
        for monitor in self._monitors:
            monitor.forbid()
        await self._drain(drain_s)
        for monitor in self._monitors:
            if ends or not await _has_parked(self._multiplexer.handle(monitor)):
                await monitor.end()
        self._become(PresenceState.AWAY)

    async def come(self) -> None:
        """Take the memory again, or start engines where there are none. Raises StartError where no engine can be had:
        then it is away, and who has waited is told. REQUIRES: it is away."""
        self._become(PresenceState.COMING)
        try:
            errors = await asyncio.gather(*(self._bring(monitor) for monitor in self._monitors))
        except BaseException:
            self._become(PresenceState.AWAY)
            raise
        failures = [error for error in errors if error is not None]
        if len(failures) == len(errors):
            for monitor in self._monitors:
                await monitor.end()
            self._become(PresenceState.AWAY)
            error = EngineFailedError(str(failures[0]))
            self._multiplexer.fail_waiting(error)
            self._fail_errands(error)
            raise failures[0]
        self._hold(held=False)
        self._become(PresenceState.HERE)
        self._multiplexer.look_again()

    async def _bring(self, monitor: EngineMonitor) -> StartError | None:
        handle = self._multiplexer.handle(monitor)
        try:
            if handle.is_open and (answered := handle.unpark()) is not None:
                await answered
            if handle.is_open:
                monitor.allow()
                return None
        except EngineError as error:
            _LOG.warning("%s restarts: it cannot load its model again (%s)", monitor.name, error.text)
            await monitor.end()
        except EngineDied:
            pass
        failed: StartError | None = None
        for _ in range(_MOST_STARTS):
            monitor.allow()
            if monitor.state is EngineState.FAILED:
                return StartError(str(monitor.last_failure))
            failed = await asyncio.shield(monitor.next_start)
            if failed is None or failed.exit_code is None or failed.exit_code >= 0:
                break
        return failed

    async def _drain(self, drain_s: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                await self._until_idle()
                return
        self._multiplexer.set_aside()
        await self._until_idle()

    async def _until_idle(self) -> None:
        while self.n_running > 0:
            self._changed.clear()
            await self._changed.wait()

    def _hold(self, *, held: bool) -> None:
        for monitor in self._monitors:
            self._multiplexer.handle(monitor).is_held = held

    def _become(self, state: PresenceState) -> None:
        self.state = state
        self.since_s = time.monotonic()
        if state is PresenceState.HERE:
            self._arrival.set_result(None)
        elif self._arrival.done():
            self._arrival = asyncio.get_running_loop().create_future()
        self._note_change()

    def _fail_errands(self, error: Exception) -> None:
        if self._arrival.done():
            return
        self._arrival.set_exception(error)
        self._arrival.exception()  # that nobody waits for it is no mistake
        if self.state is PresenceState.AWAY:
            self._arrival = asyncio.get_running_loop().create_future()

    def _note_change(self) -> None:
        now_s = time.monotonic()
        if self.n_running > 0 or self.state is PresenceState.COMING:
            self.idle_since_s = now_s
        waits = self.n_waiting > 0 and self.state is not PresenceState.HERE
        self.waits_since_s = (self.waits_since_s or now_s) if waits else None
        self._changed.set()
        self.on_change()


async def _has_parked(handle: EngineHandle) -> bool:
    """Whether it has given its memory back, or has none."""
    try:
        await handle.park()
    except EngineDied:
        return True
    except EngineError as error:
        if error.code is not ErrorCode.UNSUPPORTED:
            _LOG.warning("%s does not free the device's memory and is stopped: %s", handle.monitor.name, error.text)
        return False
    return True
