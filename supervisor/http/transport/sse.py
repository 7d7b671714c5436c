"""Server-sent events: a stream of them to one client.

Knows nothing of what the events say. A stream costs at most the transport's high-water mark and one batch of memory,
and no task or timer of its own: the watch on its connection sends its signs of life and ends it when its reader stays
away.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import TracebackType
from typing import Self

from aiohttp import web

from luce.supervisor.http.app_context import STREAMS
from luce.supervisor.http.settings import ServeSettings
from luce.supervisor.http.transport.connection import Presence
from luce.supervisor.http.transport.server_connection import ServerConnection

_MAY_BE_GONE_S = 1.0
COMMENT = b": keep-alive\n\n"
"""An event that every client takes for nothing but a sign of life."""

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",  # proxies are to hand on each event as it comes
}


class EventStream(Presence):
    """The answer to a request as a stream of events. To be used once, as an async context manager: entering it sends
    the headers at once; leaving it ends the answer, or cuts it off if an exception leaves it.

    Raises ClientGoneError in the handler's task, whatever that waits for, when the connection is closed or the reader
    stays away for `stalled_reader_s`.
    """

    def __init__(self, request: web.Request, *, keep_alive: Callable[[], bytes], settings: ServeSettings) -> None:
        """`keep_alive` gives the bytes of a whole event or comment, or none; sent after each `keep_alive_s` without a
        send."""
        super().__init__(request)
        self._keep_alive = keep_alive
        self._settings = settings
        self.response = web.StreamResponse(headers=HEADERS)
        self._loop = asyncio.get_running_loop()
        self._last_send_s = self._loop.time()
        self._waits_since_s: float | None = None  # for the reader
        self._sign_of_life: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None  # once headers and a first chunk are out, for `send_now`

    async def __aenter__(self) -> Self:
        self.__enter__()
        try:
            self._last_send_s = self._waits_since_s = self._loop.time()
            await self.response.prepare(self.request)
            self._waits_since_s = None
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        self.request[STREAMS] = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._sign_of_life is not None:
                await self._finish_sign_of_life()
            if kind is None:
                self._waits_since_s = self._loop.time()
                await self.response.write_eof()
            elif self.request.transport is not None:
                self.request.transport.abort()  # without the last chunk the client knows that it has not got all
        except BaseException as ending:
            self.__exit__(type(ending), ending, ending.__traceback__)
            raise
        self.__exit__(kind, error, trace)

    def is_clear(self) -> bool:
        """The reader is there and has taken all that was sent, and a write does not have to wait."""
        transport = self._transport
        return transport is not None and not transport.is_closing() and transport.get_write_buffer_size() == 0

    def send_now(self, events: bytes) -> None:
        """As send_bytes, outside of any task: a chunk of HTTP/1.1, as aiohttp would write it at about 8 % more CPU a
        token. REQUIRES: it is clear."""
        assert self._transport is not None
        self._last_send_s = self._loop.time()
        if events:  # a chunk of no bytes would be the last one
            self._transport.write(b"%x\r\n%b\r\n" % (len(events), events))

    async def send_bytes(self, events: bytes) -> None:
        """Whole events, encoded already."""
        self._waits_since_s = self._last_send_s = self._loop.time()
        await self.response.write(events)
        self._waits_since_s = None
        # What aiohttp has put before the body says what it does to each write: chunks as they are, or something else.
        headers = self.response.headers
        if headers.get("Transfer-Encoding") == "chunked" and "Content-Encoding" not in headers:
            self._transport = self.request.transport

    def tick(self, now_s: float) -> None:
        super().tick(now_s)
        if self._waits_since_s is not None:
            if now_s - self._waits_since_s > self._settings.stalled_reader_s:
                self.leave(f"the client has read nothing for {self._settings.stalled_reader_s:g} s")
        elif now_s - self._last_send_s >= self._silence_s() and self._sign_of_life is None:
            self._last_send_s = now_s
            if not self.request.protocol.writing_paused:  # else it has enough to read
                self._sign_of_life = self._loop.create_task(self._send_sign_of_life())

    def _silence_s(self) -> float:
        """After which there is a sign of life: soon where it has to show whether the client is there."""
        protocol = self.request.protocol
        may_be_gone = isinstance(protocol, ServerConnection) and protocol.is_half_closed
        return min(self._settings.keep_alive_s, _MAY_BE_GONE_S if may_be_gone else math.inf)

    async def _send_sign_of_life(self) -> None:
        try:
            if data := self._keep_alive():
                await self.response.write(data)
        except ConnectionError:
            pass  # the handler learns of it by itself
        finally:
            self._sign_of_life = None

    async def _finish_sign_of_life(self) -> None:
        task = self._sign_of_life
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
