"""A router's side of KV events: it knows what the messages say and nothing else, and asks for those that it has missed.

It speaks ZeroMQ and MessagePack itself, so that what the publisher shares with it is the form of what is sent.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio

_END = b"\xff" * 8
_ANSWER_S = 10.0


class HeldByEvents:
    """What is held, by medium, as far as events tell."""

    def __init__(self) -> None:
        self.blocks: dict[str, set[int]] = {}
        self.parents: dict[int, int | None] = {}
        self.tokens: dict[int, tuple[int, ...]] = {}
        self.kinds: Counter[str] = Counter()
        self.n_stored: Counter[str] = Counter()
        """Blocks, by medium."""

    def take(self, events: Iterable[list[Any] | dict[str, Any]]) -> None:
        for told in events:
            event = told if isinstance(told, list) else list(told.values())
            self.kinds[event[0]] += 1
            match event:
                case ["BlockStored", hashes, parent, tokens, size, None, medium, None]:
                    held = self.blocks.setdefault(medium, set())
                    self.n_stored[medium] += len(hashes)
                    for place, name in enumerate(hashes):
                        self.parents[name], parent = parent, name
                        self.tokens[name] = tuple(tokens[place * size : (place + 1) * size])
                        held.add(name)
                case ["BlockRemoved", hashes, medium]:
                    self.blocks.setdefault(medium, set()).difference_update(hashes)
                case ["AllBlocksCleared"]:
                    self.blocks.clear()
                case _:
                    raise AssertionError(f"an event of another form: {event}")

    @property
    def all(self) -> set[int]:
        """Those that a text gets to: with all blocks before them."""
        held = set[int]().union(*self.blocks.values())
        return {block for block in held if self._is_reached(block, held)}

    def _is_reached(self, block: int, held: set[int]) -> bool:
        at: int | None = block
        while at is not None:
            if at not in held:
                return False
            at = self.parents[at]
        return True

    @property
    def counts(self) -> dict[str, int]:
        reached = self.all
        return {medium: len(self.blocks.get(medium, set()) & reached) for medium in ("GPU", "CPU", "DISK")}

    def text(self, block: int) -> tuple[int, ...]:
        """From its start to the end of the block."""
        tokens: list[tuple[int, ...]] = []
        at: int | None = block
        while at is not None:
            tokens.append(self.tokens[at])
            at = self.parents[at]
        return sum(reversed(tokens), ())


class Subscriber:
    def __init__(
        self,
        endpoint: str,
        replay: str | None = None,
        *,
        topic: str = "",
        misses: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """`misses`: messages by number that get lost on their way."""
        self._endpoint, self._replay, self._topic, self._misses = endpoint, replay, topic, misses
        self.held = HeldByEvents()
        self.topics: set[bytes] = set()
        self.next = 0
        self.n_missed = self.n_replayed = 0
        self._asking = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._context = zmq.asyncio.Context()
        self._sub = self._context.socket(zmq.SUB)
        self._sub.subscribe(self._topic)
        self._sub.connect(self._endpoint)
        await self._ask_again()
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._context.destroy(linger=0)

    async def _read(self) -> None:
        while True:
            topic, number_bytes, payload = await self._sub.recv_multipart()
            number = int.from_bytes(number_bytes, "big")
            if self._misses(number):
                self.n_missed += 1
                continue
            self.topics.add(topic)
            if number > self.next:
                await self._ask_again()
            self._take(number, payload)

    async def catch_up(self) -> None:
        """What was lost last nobody notices: another look at the replay socket."""
        await self._ask_again()

    async def _ask_again(self) -> None:
        if self._replay is None:
            return
        asking = self._context.socket(zmq.DEALER)
        try:
            asking.connect(self._replay)
            async with self._asking, asyncio.timeout(_ANSWER_S):
                await asking.send_multipart([b"", self.next.to_bytes(8, "big")])
                while True:
                    _, number_bytes, payload = await asking.recv_multipart()
                    if number_bytes == _END:
                        return
                    self.n_replayed += 1
                    self._take(int.from_bytes(number_bytes, "big"), payload)
        finally:
            asking.close(linger=0)

    def _take(self, number: int, payload: bytes) -> None:
        if number < self.next:
            return  # it has come the other way
        _, events = msgspec.msgpack.decode(payload)
        self.held.take(events)
        self.next = number + 1


def replayed(endpoint: str) -> list[Any]:
    """The events of all batches that were published."""
    events = []
    with zmq.Context() as context, context.socket(zmq.REQ) as asking:
        asking.rcvtimeo = round(_ANSWER_S * 1000)
        asking.connect(endpoint)
        asking.send((0).to_bytes(8, "big"))
        number, payload = asking.recv_multipart()
        assert int.from_bytes(number, "big") == 0
        events += msgspec.msgpack.decode(payload)[1]
    with zmq.Context() as context, context.socket(zmq.DEALER) as asking:
        asking.rcvtimeo = round(_ANSWER_S * 1000)
        asking.connect(endpoint)
        asking.send_multipart([b"", (1).to_bytes(8, "big")])
        while (frames := asking.recv_multipart())[-1]:
            events += msgspec.msgpack.decode(frames[-1])[1]
    return events
