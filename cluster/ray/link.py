"""Link: messages between an ingress and a replica over one connection, in their order.

What is said within one turn of the event loop goes out as one frame: four bytes of length and a pickle. A pickle is
code to whoever opens it, so an ingress shows the replica's secret, which it has from Ray, before its first frame is
opened; replicas are trusted for their address, which comes from Ray too. It must not know what messages mean.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import pickle
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

SECRET_BYTES = 32
_LENGTH_BYTES = 4
_MOST_BYTES = 1 << 30
_LOG = logging.getLogger("luce.ray.link")

Message = tuple[Any, ...]


class Link(asyncio.Protocol):
    def __init__(self, receive: Callable[[Message], None], lose: Callable[[], None], *, shown: bytes = b"") -> None:
        """`receive` hears each message, `lose` once that there will be none. `shown`: the secret to show first."""
        self._receive = receive
        self._lose = lose
        self._shown = shown
        self._outbox: list[Message] = []
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self.heard_s = 0.0
        """When it said something last, by the loop's clock."""

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, *message: Any) -> None:
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(message)

    def close(self) -> None:
        """What was sent goes out first."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        messages, self._outbox = self._outbox, []
        if messages and self._transport is not None and not self._transport.is_closing():
            data = pickle.dumps(messages, protocol=pickle.HIGHEST_PROTOCOL)
            self._transport.write(len(data).to_bytes(_LENGTH_BYTES, "little") + data)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = opened = cast(asyncio.Transport, transport)  # uvloop's is of another class
        self.heard_s = asyncio.get_running_loop().time()
        _notice_lost_machines(opened.get_extra_info("socket"))
        if self._shown:
            opened.write(self._shown)
        self._flush()

    def data_received(self, data: bytes) -> None:
        self.heard_s = asyncio.get_running_loop().time()
        self._buffer += data
        while len(self._buffer) >= _LENGTH_BYTES:
            n_bytes = int.from_bytes(self._buffer[:_LENGTH_BYTES], "little")
            end = _LENGTH_BYTES + n_bytes
            if n_bytes > _MOST_BYTES:
                _LOG.error("a frame of %d bytes: the connection is closed", n_bytes)
                self.abort()
                return
            if len(self._buffer) < end:
                return
            frame = bytes(self._buffer[_LENGTH_BYTES:end])
            del self._buffer[:end]
            for message in pickle.loads(frame):  # noqa: S301  from who has shown the secret, or whom Ray named
                self._receive(message)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self._lose()


class GuardedLink(Link):
    """Of the replica's side: closed to those who do not show its secret, in time."""

    def __init__(
        self, receive: Callable[[Message], None], lose: Callable[[], None], *, secret: bytes, within_s: float = 10.0
    ) -> None:
        super().__init__(receive, lose)
        self._secret = secret
        self._within_s = within_s
        self._is_known = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        asyncio.get_running_loop().call_later(self._within_s, self._turn_away_silent)

    def _turn_away_silent(self) -> None:
        if not self._is_known and self.is_open:
            _LOG.warning("a connection without the secret was closed after %g s", self._within_s)
            self.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_known:
            super().data_received(data)
            return
        self._buffer += data
        if len(self._buffer) < SECRET_BYTES:
            return
        shown = bytes(self._buffer[:SECRET_BYTES])
        if not hmac.compare_digest(shown, self._secret):
            _LOG.warning("a connection with a wrong secret was closed")
            self.abort()
            return
        self._is_known = True
        rest = bytes(self._buffer[SECRET_BYTES:])
        self._buffer.clear()
        super().data_received(rest)


def _notice_lost_machines(connection: socket.socket) -> None:
    """A machine that is gone closes nothing."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if (option := getattr(socket, name, None)) is not None:
            with suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
