"""Pipes in asyncio's loop: PipeWriter, with a deadline for a reader that is stuck, and PipeListener, which hands on
what comes in the turn of the loop in which it came.

asyncio has a public reader for pipes but none to write with, and its reader wakes a task for what it has read. Knows
nothing of what the bytes mean.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import IO, cast

_LISTEN_BYTES = 1 << 12  # at a time: others have their turn, and no large block is taken for a few bytes


class PipeClosedError(Exception):
    """The reader of the pipe is gone."""


class PipeWriter(asyncio.BaseProtocol):
    """REQUIRES: all calls from the loop that `connect` ran in."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = False

    @classmethod
    async def connect(cls, pipe: IO[bytes]) -> PipeWriter:
        _, writer = await asyncio.get_running_loop().connect_write_pipe(cls, pipe)
        return writer

    async def write(self, data: bytes, timeout_s: float) -> None:
        """Hand `data` over; waits while too much is still unread. Raises PipeClosedError or TimeoutError."""
        if self._transport is None or self._closed:
            raise PipeClosedError
        self._transport.write(data)
        async with asyncio.timeout(timeout_s):
            await self._writable.wait()
        if self._closed:
            raise PipeClosedError

    def post(self, data: bytes) -> None:
        """Hand `data` over without waiting; what cannot be written yet is kept. Raises PipeClosedError."""
        if self._transport is None or self._closed:
            raise PipeClosedError
        self._transport.write(data)

    def close(self) -> None:
        """What was written is still delivered; nothing may be written any more."""
        self._closed = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what is still unread is lost."""
        self._closed = True
        if self._transport is None:
            return
        # One that is closing and has nothing left to write ends by itself: asyncio would end it a second time.
        if not self._transport.is_closing() or self._transport.get_write_buffer_size() > 0:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            asyncio.WriteTransport, transport
        )  # other loops than asyncio's have classes of their own

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._closed = True
        self._transport = None
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()


class PipeListener:
    """Nothing is read before `listen`, and nothing is kept: what is not read yet waits in the pipe, and its writer with
    it once that is full. Close it, or listen until the pipe has ended."""

    def __init__(self, pipe: IO[bytes]) -> None:
        """REQUIRES: an unbuffered pipe, which is this object's from now on."""
        self._pipe = pipe
        self._fd = pipe.fileno()
        self._loop = asyncio.get_running_loop()
        self._take: Callable[[bytes], None] | None = None
        os.set_blocking(self._fd, False)

    def listen(self, take: Callable[[bytes], None]) -> None:
        """`take` gets all that comes, and b"" once, when the pipe has ended. REQUIRES: called once, before `close`."""
        self._take = take
        self._loop.add_reader(self._fd, self._read)

    def close(self) -> None:
        """Safe to call twice."""
        if not self._pipe.closed:
            self._loop.remove_reader(self._fd)
            self._pipe.close()

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _LISTEN_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if data == b"":
            self.close()
        assert self._take is not None
        self._take(data)


async def open_pipe_reader(pipe: IO[bytes]) -> tuple[asyncio.StreamReader, asyncio.BaseTransport]:
    """A reader over `pipe`, and the transport that closes it."""
    reader = asyncio.StreamReader(limit=1 << 18)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    return reader, transport
