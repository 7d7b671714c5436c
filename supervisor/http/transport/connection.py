"""Whether the client is still there: noticed while nothing is written to it, and while nothing comes.

A reset closes the transport at once, and so does a FIN, unless the client may still read (`server_connection.py`).
Servers of ours cancel the handler then. Where the application is mounted in another server that does not, the watch
here sees at its next tick that the transport is closed.

One timer serves all connections, and none runs while there are none: a token costs no timer of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from types import TracebackType
from typing import Protocol, Self, TypeVar
from weakref import WeakKeyDictionary

from aiohttp import web

TICK_S = 0.2

_Result = TypeVar("_Result")


class ClientGoneError(Exception):
    """Nobody is there to read the answer any more."""


def is_gone(request: web.Request) -> bool:
    transport = request.transport
    return transport is None or transport.is_closing()


class Watched(Protocol):
    def tick(self, now_s: float) -> None: ...


class ConnectionWatch:
    """Calls `tick` of those that it holds, while it holds any. One for each event loop."""

    def __init__(self) -> None:
        self._watched: set[Watched] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, watched: Watched) -> None:
        self._watched.add(watched)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def discard(self, watched: Watched) -> None:
        self._watched.discard(watched)
        if not self._watched and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(TICK_S, self._tick)
        now_s = loop.time()
        for watched in tuple(self._watched):
            watched.tick(now_s)


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, ConnectionWatch] = WeakKeyDictionary()


def connection_watch() -> ConnectionWatch:
    """That of the running loop."""
    return _watches.setdefault(asyncio.get_running_loop(), ConnectionWatch())


class Presence:
    """Its block is cancelled when the client goes, and raises ClientGoneError then. To be used once, as a context
    manager, in the handler's task."""

    def __init__(self, request: web.Request) -> None:
        self.request = request
        self._task: asyncio.Task[object] | None = None
        self._n_cancelled = 0
        self._reason: str | None = None

    def __enter__(self) -> Self:
        if is_gone(self.request):
            raise ClientGoneError("the client has closed the connection")
        self._task = asyncio.current_task()
        assert self._task is not None
        self._n_cancelled = self._task.cancelling()
        connection_watch().add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del trace
        connection_watch().discard(self)
        if kind is None or self._task is None:
            return
        if issubclass(kind, ConnectionError) and is_gone(self.request):
            raise ClientGoneError("the client has closed the connection") from error
        if not issubclass(kind, asyncio.CancelledError):
            return
        if self._reason is not None:
            if self._task.uncancel() <= self._n_cancelled:
                raise ClientGoneError(self._reason) from error
        elif is_gone(self.request):
            self._task.uncancel()  # the server has cancelled the handler for the same reason
            raise ClientGoneError("the client has closed the connection") from error

    def tick(self, now_s: float) -> None:  # noqa: ARG002  for those that have deadlines
        if is_gone(self.request):
            self.leave("the client has closed the connection")

    def leave(self, reason: str) -> None:
        """Take the client for gone."""
        if self._reason is None and self._task is not None:
            self._reason = reason
            if self.request.transport is not None:
                self.request.transport.abort()
            self._task.cancel()


async def while_connected(request: web.Request, work: Awaitable[_Result]) -> _Result:
    """What `work` gives. It is cancelled when the client goes; then ClientGoneError is raised."""
    if is_gone(request) and isinstance(work, Coroutine):
        work.close()  # it will never be awaited
    with Presence(request):
        return await work
