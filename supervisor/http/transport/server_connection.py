"""A server's connections: what aiohttp's do, within limits of ours and with errors in JSON.

The head of a request has to be complete in time, and only so many connections may wait for a request or the rest of
one. A client that has only stopped sending gets its answers. Bodies are left as they were sent: `body` decodes them.
Must not know the application.
"""

from __future__ import annotations

import asyncio
import logging
import select
from typing import Any

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawRequestMessage

from luce.supervisor.http.transport.served_paths import with_served_path
from luce.supervisor.http.transport.unreadable import SLOW_HEAD, UNREADABLE, error_bytes, error_text

MAX_WAITING = 500  # connections; many systems give a process 1,024 files
_LOOK_S = 0.2  # between looks at a client that has stopped sending
_PROBE_S = 5.0  # between bytes that show whether it is still there
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"  # any client of HTTP/1.1 has to read over it

_log = logging.getLogger("luce.http.server")


class ServerConnection(web.RequestHandler):
    __slots__ = (
        "_head_timeout_s",
        "_head_timer",
        "_is_half_closed",
        "_payload",
        "_probed_s",
        "_request",
        "_server",
    )

    def __init__(self, server: Server, *, head_timeout_s: float, **settings: Any) -> None:
        super().__init__(server, auto_decompress=False, **settings)
        self._server = server
        self._head_timeout_s = head_timeout_s
        self._head_timer: asyncio.TimerHandle | None = None
        self._request: web.BaseRequest | None = None  # at work
        self._payload: StreamReader | None = None  # the last request's body
        self._is_half_closed = False
        self._probed_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.waits(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_head_timer()
        self._server.no_longer_waits(self)
        self._request = self._payload = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        is_of_body = self._payload is not None and not self._payload.is_eof()
        super().data_received(data)
        if data and self._request is None and self._head_timer is None and not is_of_body:
            self._head_timer = self._loop.call_later(self._head_timeout_s, self._refuse_slow_head)

    def eof_received(self) -> bool | None:  # type: ignore[override]  # as asyncio has it
        """Whether to go on sending: the client may still read. Not over TLS, whose half cannot stay open, and not to
        HTTP/1.0, which has nothing to find out with whether the client is there."""
        request = self._request
        payload = self._messages[-1][1] if self._messages else self._payload
        is_idle = request is None and not self._messages
        if is_idle or payload is None or not payload.is_eof() or self.ssl_context is not None:
            return None
        if request is not None and request.version < (1, 1):
            return None
        self._is_half_closed = True
        self._loop.call_later(_LOOK_S, self._look_for_reader)
        return True

    @property
    def is_half_closed(self) -> bool:
        """Whether the client sends no more, and may be gone: only what is written to it shows that."""
        return self._is_half_closed

    def begin(self, request: web.BaseRequest, payload: StreamReader) -> None:
        """The head of a request is complete."""
        self._stop_head_timer()
        self._request, self._payload = request, payload
        if payload.is_eof():
            self._server.no_longer_waits(self)
        else:
            payload.on_eof(self._body_is_whole)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._request = None
            if self.transport is not None:
                self._server.waits(self)
            if self._is_half_closed and not self._messages:
                self.close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """aiohttp's text would repeat what it could not read, which may be a key, or a page's script."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun")
        text = error_text(UNREADABLE, f"{request.remote}: {type(exc).__name__}")
        response = web.Response(status=status, text=text, content_type="application/json")
        response.force_close()
        return response

    def _body_is_whole(self) -> None:
        if self._request is not None:  # else it has been answered before
            self._server.no_longer_waits(self)

    def _refuse_slow_head(self) -> None:
        self._head_timer = None
        if self.transport is not None and not self.transport.is_closing():
            peer = self.peername
            self.transport.write(error_bytes(SLOW_HEAD, str(peer[0] if isinstance(peer, tuple) else peer)))
            self.force_close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _look_for_reader(self) -> None:
        """Nothing tells of a client that has closed both halves but the answer to bytes that are sent to it."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if _has_hung_up(transport):
            transport.abort()
            return
        now_s = self._loop.time()
        if self._awaits_answer() and now_s - self._probed_s >= _PROBE_S:
            self._probed_s = now_s
            transport.write(_CONTINUE)
        self._loop.call_later(_LOOK_S, self._look_for_reader)

    def _awaits_answer(self) -> bool:
        request = self._request
        return request is not None and request.writer.output_size == 0


class Server(web.Server):
    """Makes connections, and knows which of them wait for a request, or for the rest of one."""

    def __init__(self, made: web.Server) -> None:
        """As `made` by aiohttp, which is not used itself."""
        super().__init__(
            made.request_handler,
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            loop=made._loop,  # noqa: SLF001  aiohttp has no other way to name a class of connections
            **made._kwargs,  # noqa: SLF001
        )
        self._make = made.request_factory
        self.request_factory = self._begin_request
        self._waiting: dict[ServerConnection, None] = {}
        self._has_told = False

    def __call__(self) -> web.RequestHandler:
        return ServerConnection(self, loop=self._loop, **self._kwargs)

    def waits(self, connection: ServerConnection) -> None:
        """The one that has waited longest goes where there are too many."""
        self._waiting[connection] = None
        if len(self._waiting) > MAX_WAITING:
            if not self._has_told:
                _log.warning("more than %d connections wait for requests: the oldest are closed", MAX_WAITING)
                self._has_told = True
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.force_close()

    def no_longer_waits(self, connection: ServerConnection) -> None:
        self._waiting.pop(connection, None)

    def _begin_request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        request = with_served_path(self._make(message, payload, protocol, writer, task))
        assert isinstance(protocol, ServerConnection)
        protocol.begin(request, payload)
        return request


class Runner(web.AppRunner):
    """An application's, with such connections."""

    __slots__ = ()

    async def _make_server(self) -> web.Server:
        return Server(await super()._make_server())


def _has_hung_up(transport: asyncio.Transport) -> bool:
    """Whether the connection is gone in both directions."""
    connected = transport.get_extra_info("socket")
    poll = select.poll()
    poll.register(connected.fileno(), 0)
    return bool(poll.poll(0))  # an error, or that it has hung up: nothing else was asked for
