"""IdleSleep: gives the memory of engines back that have had nothing to do for long (park); the next request wakes them.

Looks at handles from time to time, and must not know requests: a handle that is given one takes its memory back by
itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from luce.protocol import ErrorCode
from luce.supervisor.engine.generation import EngineDied, EngineError
from luce.supervisor.scheduling.engine_handle import EngineHandle

_LOG = logging.getLogger("luce.scheduling")


class IdleSleep:
    """Cancel the task that runs it."""

    def __init__(self, handles: Sequence[EngineHandle], idle_s: float) -> None:
        self._handles = list(handles)
        self._idle_s = idle_s

    async def run(self) -> None:
        while self._handles:
            for handle in list(self._handles):
                if self.due_s(handle, time.monotonic()) <= 0:
                    await self._park(handle)
            now_s = time.monotonic()
            await asyncio.sleep(min((self.due_s(handle, now_s) for handle in self._handles), default=self._idle_s))

    def due_s(self, handle: EngineHandle, now_s: float) -> float:
        """Seconds until it may have been idle for long enough."""
        if not handle.is_here or handle.is_parked or handle.attempts or handle.compressing.locked():
            return self._idle_s
        return max(handle.idle_since_s + self._idle_s - now_s, 0.0)

    async def _park(self, handle: EngineHandle) -> None:
        try:
            await handle.park()
        except EngineDied:
            return
        except EngineError as error:
            if error.code is ErrorCode.UNSUPPORTED:
                self._handles.remove(handle)
                _LOG.warning("%s is idle, but cannot free the device's memory: %s", handle.monitor.name, error.text)
            handle.note_use()
        else:
            _LOG.info("%s was idle for %g s and has freed the device's memory", handle.monitor.name, self._idle_s)
