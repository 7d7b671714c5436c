"""StreamSession: the events of one answer as they were sent, kept for a while, whoever reads them.

Bounded in memory and time: of a long stream the beginning goes first; an answer without a reader is ended after a
while, and one that is complete is forgotten. A session belongs to the API key that it was begun with, and makes no room
for another key's that has more. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SESSION_BYTES = 4 << 20
_END = b"\n\n"  # of an event


class OffsetLostError(Exception):
    """What stood there is not kept any more, or has never been."""


class StreamSession:
    def __init__(self, client: str, name: str, keep_alive: Callable[[], bytes]) -> None:
        self.client = client
        self.name = name
        self.keep_alive = keep_alive
        """The bytes of a sign of life; they count like all others."""
        self.began_s = time.time()
        self.ended_s: float | None = None
        self.n_dropped = 0
        """Bytes from the beginning that are not kept any more."""
        self.n_readers = 0
        self.changed_s = time.monotonic()
        """Of the last event, or of the end."""
        self.left_s = time.monotonic()
        """When the last reader went."""
        self.task: asyncio.Task[None] | None = None
        """What writes it."""
        self._kept = bytearray()
        self._changed = asyncio.Event()

    @property
    def n_bytes(self) -> int:
        """In all, since the beginning."""
        return self.n_dropped + len(self._kept)

    @property
    def n_kept(self) -> int:
        return len(self._kept)

    def write(self, events: bytes) -> None:
        """Whole events. Each gets the place where it begins as its id, for `Last-Event-ID`."""
        for event in filter(None, events.split(_END)):
            if not event.startswith(b":"):
                self._kept += b"id: %d\n" % self.n_bytes
            self._kept += event + _END
        if len(self._kept) > SESSION_BYTES:
            self.drop(len(self._kept) - SESSION_BYTES)
        self._note_change()

    def drop(self, n_bytes: int) -> None:
        del self._kept[:n_bytes]
        self.n_dropped += n_bytes

    def end(self) -> None:
        self.ended_s = time.time()
        self._note_change()

    async def read(self, begin: int, most: int) -> bytes:
        """What stands from there on, as soon as there is anything; nothing: it has ended there. Raises
        OffsetLostError."""
        while True:
            if begin < self.n_dropped or begin > self.n_bytes:
                raise OffsetLostError
            if begin < self.n_bytes or self.ended_s is not None:
                at = begin - self.n_dropped
                return bytes(self._kept[at : at + most])
            await self._changed.wait()

    def start(self) -> int:
        """The first byte. Raises OffsetLostError."""
        if self.n_dropped:
            raise OffsetLostError
        return 0

    def place_of(self, pattern: bytes) -> int:
        """Where a part of an event stands. Raises OffsetLostError."""
        place = self._kept.find(pattern)
        if place < 0:
            raise OffsetLostError
        return self.n_dropped + place

    def look(self) -> None:
        """Somebody wants to know how far it is: it is not abandoned."""
        self.left_s = time.monotonic()

    def behind(self, begin: int) -> int:
        """Where the event ends that begins there. Raises OffsetLostError."""
        end = self._kept.find(_END, begin - self.n_dropped) if begin >= self.n_dropped else -1
        if end < 0:
            raise OffsetLostError
        return self.n_dropped + end + len(_END)

    @contextmanager
    def reader(self) -> Iterator[None]:
        self.n_readers += 1
        try:
            yield
        finally:
            self.n_readers -= 1
            self.left_s = time.monotonic()

    def _note_change(self) -> None:
        self.changed_s = time.monotonic()
        self._changed.set()
        self._changed = asyncio.Event()


class StreamSessions:
    """Of one server."""

    def __init__(self, *, max_bytes: int, kept_s: float, keep_alive_s: float) -> None:
        """`kept_s`: how long an answer goes on without a reader, and is kept once it is complete."""
        self._max_bytes = max_bytes
        self._kept_s = kept_s
        self._keep_alive_s = keep_alive_s
        self._sessions: dict[tuple[str, str], StreamSession] = {}  # the oldest first

    def add(self, session: StreamSession) -> None:
        """In place of an earlier one of this name."""
        self.drop(session.client, session.name)
        self._sessions[session.client, session.name] = session

    def find(self, client: str, name: str) -> StreamSession | None:
        return self._sessions.get((client, name))

    def named(self, client: str, beginning: str) -> list[StreamSession]:
        """Those of exactly this name, and with a model's name behind it, as llama-server's page has them."""
        sessions = (session for (owner, _), session in self._sessions.items() if owner == client)
        return [one for one in sessions if one.name == beginning or one.name.startswith(f"{beginning}::")]

    def drop(self, client: str, name: str) -> None:
        """Its answer is ended, if it is not complete."""
        session = self._sessions.pop((client, name), None)
        if session is not None and session.task is not None:
            session.task.cancel()

    def forget(self, session: StreamSession) -> None:
        """If it is still the one of its name."""
        if self._sessions.get((session.client, session.name)) is session:
            del self._sessions[session.client, session.name]

    def __len__(self) -> int:
        return len(self._sessions)

    def tick(self, now_s: float) -> None:
        """To be called now and then with time.monotonic(): signs of life, and what has been kept for long enough."""
        for session in tuple(self._sessions.values()):
            since_s = session.left_s if session.ended_s is None else max(session.left_s, session.changed_s)
            if session.n_readers == 0 and now_s - since_s > self._kept_s:
                self.drop(session.client, session.name)
            elif session.ended_s is None and session.n_bytes > 0 and now_s - session.changed_s > self._keep_alive_s:
                session.write(session.keep_alive())
        self._keep_bound()

    async def close(self) -> None:
        tasks = [session.task for session in self._sessions.values() if session.task is not None]
        for session in tuple(self._sessions.values()):
            self.drop(session.client, session.name)
        if tasks:
            await asyncio.wait(tasks)

    def _keep_bound(self) -> None:
        """Of the client that has most: complete ones first, the oldest of them; then the beginnings of the largest."""
        n_bytes = Counter[str]()
        for session in self._sessions.values():
            n_bytes[session.client] += session.n_kept
        while n_bytes.total() > self._max_bytes:
            ((client, _),) = n_bytes.most_common(1)
            own = [session for session in self._sessions.values() if session.client == client]
            complete = (session for session in own if session.ended_s is not None and session.n_readers == 0)
            if (oldest := next((session for session in complete if session.n_kept), None)) is not None:
                n_bytes[client] -= oldest.n_kept
                self.drop(client, oldest.name)
                continue
            largest = max(own, key=lambda session: session.n_kept)
            n_bytes[client] -= (n_half := -(-largest.n_kept // 2))
            largest.drop(n_half)
