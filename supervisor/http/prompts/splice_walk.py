"""SpliceWalk: how far a prompt has been gone through for answers to put in, and what came of it; SpliceWalks: those of
earlier prompts, so that the next turn of a conversation goes on where it parts from the one before. Knows rendered
prompts; decides nothing.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Generic, TypeVar

from luce.supervisor.http.prompts.answer_spellings import GivenAnswer
from luce.supervisor.text import MessageMark, RenderedChat

_N_STOPS = 6  # at the last marks of a prompt, where the next one may part from it
_MAX_TOKENS = 4 << 20  # of all prompts: each takes some twelve bytes a token
MAX_KEPT = 64  # prompts: each is looked at for the next one, and takes some ten kilobytes however short it is

A = TypeVar("A")
"""What is known at a place."""
Found = Sequence[tuple[bytes, A]]
"""What was known at which place."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A walk before a mark. Its lists only grow."""

    n_marks: int
    digest: blake2b
    n_hashed: int
    n_taken: int
    n_spliced: int
    n_said: int
    lengths: tuple[int, ...]


@dataclass(slots=True)
class SpliceWalk(Generic[A]):
    digest: blake2b
    n_hashed: int = 0
    """Bytes of the prompt."""
    n_taken: int = 0
    """Of the prompt's own ids."""
    n_spliced: int = 0
    n_said: int = 0
    """Messages of the assistant's."""
    n_seen: int = 0
    """Bytes of the prompt on which something has depended."""
    ids: array[int] = field(default_factory=lambda: array("i"))
    boundaries: list[int] = field(default_factory=list)
    places: list[int | None] = field(default_factory=list)
    """Of the marks that were passed."""
    replaced: list[int] = field(default_factory=list)
    respelled: list[int] = field(default_factory=list)
    found: list[tuple[bytes, A]] = field(default_factory=list)

    def stop(self) -> Stop:
        lengths = tuple(map(len, self._lists()))
        counts = (self.n_hashed, self.n_taken, self.n_spliced, self.n_said)
        return Stop(len(self.places), self.digest.copy(), *counts, lengths)

    def resumed(self, at: Stop) -> SpliceWalk[A]:
        """Another one, from there on."""
        walk: SpliceWalk[A] = SpliceWalk(at.digest.copy(), at.n_hashed, at.n_taken, at.n_spliced, at.n_said)
        for own, other, n in zip(walk._lists(), self._lists(), at.lengths, strict=True):
            own.extend(other[:n])
        return walk

    def _lists(self) -> tuple[Any, ...]:
        return self.ids, self.boundaries, self.places, self.replaced, self.respelled, self.found


@dataclass(frozen=True, slots=True, eq=False)
class PastWalk(Generic[A]):
    client: str
    chat: RenderedChat
    answers: Sequence[GivenAnswer | None]
    walk: SpliceWalk[A]
    stops: Sequence[Stop]

    def common_stop(self, chat: RenderedChat, answers: Sequence[GivenAnswer | None]) -> Stop | None:
        """The last one up to which another prompt is the same, with the same answers in it."""
        own = self.chat
        serial, n_bytes, n_tokens = chat.earlier
        for stop in reversed(self.stops):
            mark = own.marks[stop.n_marks]
            is_told = mark.byte <= n_bytes and mark.token <= n_tokens
            if (
                (is_told if serial == own.serial else self._is_same(chat, mark))
                and own.marks[: stop.n_marks + 1] == chat.marks[: stop.n_marks + 1]
                and self.answers[: stop.n_said] == answers[: stop.n_said]
            ):
                return stop
        return None

    def _is_same(self, chat: RenderedChat, mark: MessageMark) -> bool:
        """Up to one of its marks."""
        own = self.chat
        return (
            chat.prompt_bytes.startswith(own.prompt_bytes[: mark.byte])
            and own.tokens[: mark.token] == chat.tokens[: mark.token]
        )


class SpliceWalks(Generic[A]):
    """The latest. Any thread may use it."""

    def __init__(self) -> None:
        self._past: list[PastWalk[A]] = []
        self._lock = threading.Lock()

    def begin(
        self,
        chat: RenderedChat,
        client: str,
        answers: Sequence[GivenAnswer | None],
        still_holds: Callable[[Found[A]], bool],
    ) -> tuple[SpliceWalk[A], PastWalk[A] | None]:
        """From where the prompt parts from an earlier one of the client's, and that one, if what was known up to there
        is known still; else from the beginning."""
        with self._lock:
            past = [known for known in reversed(self._past) if known.client == client]
        for known in past:
            stop = known.common_stop(chat, answers)
            if stop is not None and still_holds((walk := known.walk.resumed(stop)).found):
                return walk, known
        return SpliceWalk(blake2b(client.encode(), digest_size=16)), None

    def keep(self, walk: PastWalk[A], before: PastWalk[A] | None) -> None:
        """`before`: the one that it goes on from, and takes the place of."""
        with self._lock:
            if before in self._past:
                self._past.remove(before)
            self._past.append(walk)
            n_tokens = sum(len(known.chat.tokens) for known in self._past)
            while n_tokens > _MAX_TOKENS or len(self._past) > MAX_KEPT:
                n_tokens -= len(self._past.pop(0).chat.tokens)


def stops_at(n_marks: int) -> range:
    """The marks before which a walk through so many is worth going on from."""
    return range(max(n_marks - _N_STOPS, 1), n_marks)
