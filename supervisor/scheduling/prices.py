"""What things have cost lately, measured: how fast an engine reads, also from its disk, how long its requests take, and
how fast a text's memory gets from one engine to another, or from a store. Pure: times are told.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

_KEPT = 0.8
"""How much of what was seen before counts once something new has been seen."""
_LEAST_READ = 64
"""Tokens: less says more of a call's fixed cost than of reading."""
_LEAST_FETCHED = 1 << 16
"""Bytes: the same of a fetch."""
_FETCH_HOLDS_S = 60.0
"""What fetching costs is known for so long: then the next to ask tries again."""
_FIRST_MOVE_BYTES, _FIRST_MOVE_S = 500e6, 1.05
"""What a move counts as until there has been one: a slow disk's pace, and what the commands take."""


@dataclass(slots=True)
class Price:
    """Of an amount, in seconds; what was seen last weighs most."""

    amount: float = 0.0
    seconds: float = 0.0

    def note(self, amount: float, seconds: float) -> None:
        self.amount = _KEPT * self.amount + amount
        self.seconds = _KEPT * self.seconds + seconds

    def of(self, amount: float) -> float | None:
        """None: nothing has been seen yet."""
        return amount * self.seconds / self.amount if self.amount else None

    @classmethod
    def merged(cls, prices: Iterable[Price]) -> Self:
        """By what all of them have seen."""
        several = list(prices)
        return cls(sum(price.amount for price in several), sum(price.seconds for price in several))


class EnginePrices:
    """Of one engine, or of several together."""

    def __init__(self) -> None:
        self.reading = Price()
        self.restoring = Price()
        self.service = Price()
        self.largest_slice = 0
        """Tokens of a prompt that it has read at once lately; 0: nobody has seen it."""

    @classmethod
    def merged(cls, engines: Iterable[EnginePrices]) -> Self:
        several, merged = list(engines), cls()
        merged.reading = Price.merged(one.reading for one in several)
        merged.restoring = Price.merged(one.restoring for one in several)
        merged.service = Price.merged(one.service for one in several)
        return merged

    def note_read(self, n_tokens: int, seconds: float) -> None:
        """So many tokens of a prompt were computed, from its turn to its first token: beside whatever else ran."""
        if n_tokens >= _LEAST_READ and seconds > 0:
            self.reading.note(n_tokens, seconds)

    def note_restored(self, n_tokens: int, seconds: float) -> None:
        """A prompt went on from so many tokens of which some were on disk, and began to be read so much later."""
        if seconds > 0:
            self.restoring.note(n_tokens, seconds)

    def note_service(self, seconds: float) -> None:
        """A request had a lane for so long."""
        self.service.note(1, seconds)

    def read_s(self, n_tokens: int) -> float | None:
        """None: it has read nothing yet."""
        return self.reading.of(n_tokens)

    def restore_s(self, n_tokens: int) -> float | None:
        """None: it has gone on from nothing on disk yet."""
        return self.restoring.of(n_tokens)

    def service_s(self) -> float | None:
        """None: no request has ended yet."""
        return self.service.of(1)

    def wait_s(self, n_lanes: int, n_before: float) -> float:
        """Until a lane is free for one that so many wait before, while all are taken."""
        return (self.service_s() or 0.0) * (1 + n_before) / max(n_lanes, 1)


class FetchPrice:
    """Of fetching from a store, in as many streams as there are. A store that has become much slower is believed at
    once, and what nobody has confirmed for a while is no price any more."""

    def __init__(self) -> None:
        self._price = Price()
        self._noted_s = 0.0

    def note(self, n_bytes: int, took_s: float, now_s: float) -> None:
        """Also of a fetch that was given up: so many bytes had come by then."""
        self._noted_s = now_s
        expected_s = self._price.of(max(n_bytes, 1))
        if expected_s is None and n_bytes < _LEAST_FETCHED:
            return
        if expected_s is not None and took_s > 4 * expected_s:
            self._price = Price()
        self._price.note(max(n_bytes, 1), took_s)

    def fetch_s(self, n_bytes: int, now_s: float) -> float | None:
        """None: nobody knows, or has known for too long."""
        return None if now_s - self._noted_s > _FETCH_HOLDS_S else self._price.of(n_bytes)


def first_move_price() -> Price:
    """Of a byte of a text's memory that moves to another engine, before one has."""
    return Price(_FIRST_MOVE_BYTES, _FIRST_MOVE_S)
