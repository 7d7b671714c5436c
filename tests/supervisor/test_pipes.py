"""PipeListener with real pipes: in order, in one turn, nothing taken before somebody listens, one end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import IO

import pytest

from luce.supervisor.engine.pipes import PipeListener

DEADLINE_S = 60.0


@pytest.fixture
def pipe() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    read_fd, write_fd = os.pipe()
    with open(read_fd, "rb", buffering=0) as reader, open(write_fd, "wb", buffering=0) as writer:
        yield reader, writer


class Heard:
    def __init__(self) -> None:
        self.data = b""
        self.n_ends = 0
        self.ended = asyncio.Event()

    def take(self, data: bytes) -> None:
        self.data += data
        if data == b"":
            self.n_ends += 1
            self.ended.set()


async def test_all_comes_in_order_and_the_end_once(pipe: tuple[IO[bytes], IO[bytes]]) -> None:
    reader, writer = pipe
    heard = Heard()
    listener = PipeListener(reader)
    listener.listen(heard.take)
    sent = os.urandom(50_000)
    writer.write(sent)
    writer.close()
    async with asyncio.timeout(DEADLINE_S):
        await heard.ended.wait()
    assert heard.data == sent
    listener.close()
    listener.close()
    await asyncio.sleep(0)
    assert heard.n_ends == 1


async def test_what_has_come_is_handed_on_in_one_turn(pipe: tuple[IO[bytes], IO[bytes]]) -> None:
    reader, writer = pipe
    heard = Heard()
    listener = PipeListener(reader)
    listener.listen(heard.take)
    writer.write(b"token")
    await asyncio.sleep(0)  # the loop asks for what is readable, and calls who listens
    await asyncio.sleep(0)
    assert heard.data == b"token"
    listener.close()


async def test_nothing_is_taken_before_somebody_listens(pipe: tuple[IO[bytes], IO[bytes]]) -> None:
    reader, writer = pipe
    listener = PipeListener(reader)
    os.set_blocking(writer.fileno(), False)
    n_sent = 0
    with suppress(BlockingIOError):  # the pipe is full
        while True:
            n_sent += os.write(writer.fileno(), bytes(4096))
            await asyncio.sleep(0)
    writer.close()
    heard = Heard()
    listener.listen(heard.take)
    async with asyncio.timeout(DEADLINE_S):
        await heard.ended.wait()
    assert len(heard.data) == n_sent


async def test_a_closed_one_takes_nothing_more(pipe: tuple[IO[bytes], IO[bytes]]) -> None:
    reader, writer = pipe
    heard = Heard()
    listener = PipeListener(reader)
    listener.listen(heard.take)
    listener.close()
    with pytest.raises(BrokenPipeError):
        writer.write(b"token")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (heard.data, heard.n_ends) == (b"", 0)
