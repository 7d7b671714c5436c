"""A client that writes and reads bytes, for what HTTP libraries do not do. Every read has a deadline."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

DEADLINE_S = 120.0


@dataclass(frozen=True)
class RawAnswer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        async with asyncio.timeout(DEADLINE_S):
            await self.writer.drain()

    async def read_until(self, end: bytes) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            return await self.reader.readuntil(end)

    async def read_answer(self) -> RawAnswer:
        """One whole answer with a length, without what a server says before it."""
        head = (await self.read_until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        while head[0].startswith("HTTP/1.1 100 "):
            head = (await self.read_until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        async with asyncio.timeout(DEADLINE_S):
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return RawAnswer(int(head[0].split()[1]), headers, body)

    async def read_to_end(self) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            return await self.reader.read()

    def vanish(self) -> None:
        """Without a goodbye: the peer gets a reset."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self.writer.transport.abort()


@asynccontextmanager
async def raw_client(url: str, *, receive_buffer: int | None = None) -> AsyncIterator[RawClient]:
    """`receive_buffer`: bytes that the kernel takes for a client that does not read; it reads little ahead then."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connected = socket.socket()
    if receive_buffer is not None:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connected.setblocking(False)
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.get_running_loop().sock_connect(connected, (parts.hostname, parts.port))
    limit = 2**16 if receive_buffer is None else 1024
    reader, writer = await asyncio.open_connection(sock=connected, limit=limit)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def post(path: str, body: Any, *, headers: str = "", version: str = "1.1") -> bytes:
    """The bytes of a POST. `body` is JSON's value, or bytes as they stand; `headers` end with CRLF each."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def get(path: str, *, headers: str = "", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode()
