"""KvEventPublisher: sends what changes to whoever subscribes, and once more to those who have missed it.

A message has three frames: the topic, its number (from 0, eight bytes, big endian) and a batch of events. Numbers that
are missing tell a subscriber that it has missed something; a request at the replay socket holds the number to begin
with, and is answered with the batches from there on and a last message with number -1. Where the first of them are not
kept any more, the answer is one batch with all that is held. All of it runs in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import zmq
import zmq.asyncio

from luce.supervisor.config import ConfigError
from luce.supervisor.kv_events.block_events import block_events
from luce.supervisor.kv_events.config import Endpoint, KvEventsConfig
from luce.supervisor.kv_events.events import AllBlocksCleared, Event, encode_batch
from luce.supervisor.kv_events.replay_buffer import ReplayBuffer
from luce.supervisor.prefix_cache.held_pages import HeldPages, PageMove

_LOG = logging.getLogger("luce.kv_events")
_END = (-1).to_bytes(8, "big", signed=True)
_MAX_WAITING = 100_000  # batches for one slow subscriber; then it misses some
_MAX_ASKED_BYTES = 256  # of a frame; a request has eight
_ASKED_READER_S = 10.0  # for which somebody who has asked may read nothing
_LINGER_MS = 500


class KvEventPublisher:
    """A PageListener. Use as a context manager around the supervisor whose pages it publishes; entering it raises
    ConfigError where an endpoint cannot be had."""

    def __init__(self, config: KvEventsConfig) -> None:
        self._config = config
        self._held: HeldPages | None = None
        self._buffer = ReplayBuffer(max_steps=config.buffer_steps, max_bytes=config.buffer_bytes)
        self._context = zmq.Context()
        self._sockets: list[zmq.Socket[bytes] | zmq.asyncio.Socket] = []
        self._answering: asyncio.Task[None] | None = None
        self._topic = config.topic.encode()
        self.endpoint = self.replay_endpoint = ""
        """Where it can be reached, once it is entered."""
        self.n_published = 0

    async def __aenter__(self) -> Self:
        try:
            self._pub: zmq.Socket[bytes] = self._context.socket(zmq.PUB)
            self._sockets.append(self._pub)
            self._pub.sndhwm = _MAX_WAITING
            self.endpoint = _attach(self._pub, self._config.endpoint, "kv_events")
            if self._config.replay is not None:
                asked = zmq.asyncio.Context.shadow(self._context).socket(zmq.ROUTER)
                self._sockets.append(asked)
                asked.router_mandatory = True
                asked.maxmsgsize = _MAX_ASKED_BYTES
                self.replay_endpoint = _attach(asked, self._config.replay, "kv_events_replay")
                self._answering = asyncio.create_task(self._answer(asked), name="replay of KV events")
        except BaseException:
            await self._close()
            raise
        for endpoint in (self._config.endpoint, self._config.replay):
            if endpoint is not None and endpoint.is_exposed:
                _LOG.warning("KV events: %s shows without a key which texts are cached", endpoint.address)
        # Who has known an earlier server at this address knows nothing of this one.
        self._publish([AllBlocksCleared()])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.wait([self._answering])
        for socket in self._sockets:
            socket.close(linger=_LINGER_MS)
        await asyncio.to_thread(self._context.term)

    def watch(self, held: HeldPages) -> None:
        """Publish what is held there, and what changes of it from now on."""
        self._held = held
        held.watch(self)

    def pages_moved(self, moves: Sequence[PageMove]) -> None:
        self._publish(self._events_of(moves))

    def pages_cleared(self) -> None:
        self._publish([AllBlocksCleared()])

    def _events_of(self, moves: Sequence[PageMove]) -> list[Event]:
        return block_events(moves, self._config.media, tells_tokens=self._config.tells_tokens)

    def _publish(self, events: list[Event]) -> None:
        if not events:
            return
        payload = self._encode(events)
        number, self.n_published = self.n_published, self.n_published + 1
        self._buffer.append(number, payload)
        self._pub.send_multipart([self._topic, number.to_bytes(8, "big"), payload], flags=zmq.NOBLOCK)

    async def _answer(self, asked: zmq.asyncio.Socket) -> None:
        level = logging.WARNING
        while True:
            *sender, number = await asked.recv_multipart()
            if not 1 <= len(sender) <= 2 or len(number) != 8:
                _LOG.log(level, "KV events: requests for a replay that are no number of eight bytes are passed over")
                level = logging.DEBUG  # anyone may send them
                continue
            try:
                async with asyncio.timeout(_ASKED_READER_S):
                    for batch, payload in self._batches_since(int.from_bytes(number, "big")):
                        await asked.send_multipart([*sender, batch.to_bytes(8, "big"), payload])
                    await asked.send_multipart([*sender, _END, b""])
            except (TimeoutError, zmq.ZMQError):
                _LOG.warning("KV events: the client that requested a replay has left or does not read it")

    def _batches_since(self, number: int) -> Sequence[tuple[int, bytes]]:
        if number == self.n_published:
            return ()
        kept = self._buffer.since(number) if number < self.n_published else None
        if kept is not None:
            return kept
        listing = [] if self._held is None else self._held.listing()
        return [(self.n_published - 1, self._encode([AllBlocksCleared(), *self._events_of(listing)]))]

    def _encode(self, events: Sequence[Event]) -> bytes:
        return encode_batch(time.time(), events, self._config.encoding)


def _attach(socket: zmq.Socket[bytes] | zmq.asyncio.Socket, endpoint: Endpoint, option: str) -> str:
    """Returns the address that it has. Raises ConfigError."""
    try:
        if endpoint.connects:
            socket.connect(endpoint.address)
            return endpoint.address
        socket.bind(endpoint.address)
        return socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
    except zmq.ZMQError as error:
        raise ConfigError(f"{option}: {endpoint.address}: {zmq.strerror(error.errno or 0)}") from error
