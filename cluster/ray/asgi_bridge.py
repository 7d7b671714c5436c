"""AsgiBridge: an aiohttp application as an ASGI application, for Serve's proxy.

A request goes as HTTP/1.1 into a connection of aiohttp's own kind, in memory: no second socket, and nothing of the
application is different there. Bodies go both ways as they come; a client that leaves closes the connection. It must
not know what is asked.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from typing import Any

import h11
from aiohttp import web

from luce.supervisor.http.transport.unreadable import UNREADABLE, error_text

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_NOT_VISIBLE = re.compile(rb"[^\x21-\x7e]")
_HIGH_WATER_BYTES = 64 << 10
_OF_CONNECTIONS = {b"connection", b"transfer-encoding", b"keep-alive", b"upgrade", b"expect"}


class AsgiBridge:
    def __init__(self, runner: web.AppRunner) -> None:
        """`runner` has been set up, and outlives it."""
        assert runner.server is not None
        self._server = runner.server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            raise NotImplementedError(f"luce speaks HTTP; there is nothing here for {scope['type']}")
        await _Exchange(self._server(), scope, receive, send).run()


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


class _Exchange:
    """One request and its response, over a connection of their own."""

    def __init__(self, protocol: asyncio.Protocol, scope: Scope, receive: Receive, send: Send) -> None:
        self._protocol = protocol
        self._scope = scope
        self._receive = receive
        self._send = send
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
        self._transport = _MemoryTransport(protocol, scope)

    async def run(self) -> None:
        try:
            head = self._head()
        except h11.LocalProtocolError:  # the proxy lets more through than HTTP allows
            body = error_text(UNREADABLE, "Serve's proxy").encode()
            headers = [(b"content-type", b"application/json; charset=utf-8")]
            await self._send({"type": "http.response.start", "status": 400, "headers": headers})
            await self._send({"type": "http.response.body", "body": body, "more_body": False})
            return
        self._protocol.connection_made(self._transport)
        asking = asyncio.create_task(self._ask(head))
        try:
            await self._answer()
        finally:
            asking.cancel()
            await asyncio.wait([asking])
            self._transport.lose()

    async def _ask(self, head: bytes) -> None:
        """The request; then waits for the client to leave."""
        self._protocol.data_received(head)
        has_more = True
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._transport.lose()
                return
            if not has_more:
                continue
            body, has_more = message.get("body", b""), message.get("more_body", False)
            await self._transport.may_read.wait()
            if body and (data := self._http.send(h11.Data(data=body))):
                self._protocol.data_received(data)
            if not has_more and (data := self._http.send(h11.EndOfMessage())):
                self._protocol.data_received(data)

    def _head(self) -> bytes:
        """Raises h11.LocalProtocolError."""
        scope = self._scope
        target = scope.get("raw_path") or scope["path"].encode()
        target = target.removeprefix(scope.get("root_path", "").encode()) or b"/"  # Serve's route_prefix
        if query := scope.get("query_string"):
            target += b"?" + query
        target = _NOT_VISIBLE.sub(lambda found: b"%%%02X" % found[0][0], target)
        given = [(name, value) for name, value in scope["headers"] if name.lower() not in _OF_CONNECTIONS]
        if not any(name.lower() == b"host" for name, _ in given):
            given.append((b"host", b"localhost"))
        is_sized = any(name.lower() == b"content-length" for name, _ in given)
        if not is_sized and scope["method"] not in {"GET", "HEAD", "DELETE", "OPTIONS"}:
            given.append((b"transfer-encoding", b"chunked"))
        head: bytes = self._http.send(h11.Request(method=scope["method"], target=target, headers=given)) or b""
        return head

    async def _answer(self) -> None:
        """Raises ConnectionError where the application cuts the answer off, so that the client's is cut off too."""
        has_begun = False
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                data = await self._transport.written()
                self._http.receive_data(data)
                if data == b"" and not has_begun:
                    return  # the client has left before anything was said
            elif isinstance(event, h11.Response):
                has_begun = True
                headers = [pair for pair in event.headers if pair[0] not in {b"transfer-encoding", b"connection"}]
                await self._send({"type": "http.response.start", "status": event.status_code, "headers": headers})
            elif isinstance(event, h11.Data):
                await self._send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
            elif isinstance(event, h11.EndOfMessage):
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            elif isinstance(event, h11.ConnectionClosed):
                return


class _MemoryTransport(asyncio.Transport):
    """The application's end of the connection."""

    def __init__(self, protocol: asyncio.Protocol, scope: Scope) -> None:
        super().__init__({"peername": tuple(scope.get("client") or ("127.0.0.1", 0)), "sockname": ("127.0.0.1", 0)})
        self._protocol = protocol
        self._written = bytearray()
        self._changed = asyncio.Event()
        self._is_closing = False
        self._is_lost = False
        self._is_paused = False
        self.may_read = asyncio.Event()
        self.may_read.set()

    async def written(self) -> bytes:
        """What the application has written since; nothing once it has closed."""
        while not self._written and not self._is_closing:
            self._changed.clear()
            await self._changed.wait()
        data = bytes(self._written)
        self._written.clear()
        if self._is_paused and not self._is_lost:
            self._is_paused = False
            self._protocol.resume_writing()
        return data

    def lose(self) -> None:
        """The other end is gone."""
        self._is_closing = True
        self._changed.set()
        self.may_read.set()
        if not self._is_lost:
            self._is_lost = True
            with suppress(ConnectionError):
                self._protocol.connection_lost(None)

    # asyncio.Transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing:
            return
        self._written += data
        self._changed.set()
        if len(self._written) > _HIGH_WATER_BYTES and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:
            self.write(data)

    def get_write_buffer_size(self) -> int:
        return len(self._written)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True
        self._changed.set()
        asyncio.get_running_loop().call_soon(self.lose)

    def abort(self) -> None:
        self._written.clear()
        self.close()

    def pause_reading(self) -> None:
        self.may_read.clear()

    def resume_reading(self) -> None:
        self.may_read.set()

    def is_reading(self) -> bool:
        return self.may_read.is_set()

    def can_write_eof(self) -> bool:
        return False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol
