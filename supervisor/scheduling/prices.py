"""What things have cost lately, measured: how fast an engine reads, also from its disk, how long its requests take,
how fast a text's memory gets from one engine to another. Pure.
"""

from __future__ import annotations

_KEPT = 0.8
"""How much of what was seen before counts once something new has been seen."""
_LEAST_READ = 64
"""Tokens: less says more of a call's fixed cost than of reading."""
_FIRST_MOVE_BYTES, _FIRST_MOVE_S = 500e6, 1.05
"""What a move counts as until there has been one: a slow disk's pace, and what the commands take."""


class _Sums:
    """An amount for a time, of which newer ones weigh more."""

    def __init__(self, amount: float = 0.0, seconds: float = 0.0) -> None:
        self.amount = amount
        self.seconds = seconds

    def note(self, amount: float, seconds: float) -> None:
        self.amount = _KEPT * self.amount + amount
        self.seconds = _KEPT * self.seconds + seconds


class EnginePrices:
    """Of one engine."""

    def __init__(self) -> None:
        self._reading = _Sums()
        self._restoring = _Sums()
        self._service = _Sums()
        self.largest_slice = 0
        """Tokens of a prompt that it has read at once lately; 0: nobody has seen it."""

    def note_read(self, n_tokens: int, seconds: float) -> None:
        """So many tokens of a prompt were computed, from its turn to its first token: beside whatever else ran."""
        if n_tokens >= _LEAST_READ and seconds > 0:
            self._reading.note(n_tokens, seconds)

    def note_restored(self, n_tokens: int, seconds: float) -> None:
        """A prompt went on from so many tokens of which some were on disk, and began to be read so much later."""
        if seconds > 0:
            self._restoring.note(n_tokens, seconds)

    def note_service(self, seconds: float) -> None:
        """A request had a lane for so long."""
        self._service.note(1, seconds)

    def read_s(self, n_tokens: int) -> float | None:
        """None: it has read nothing yet."""
        return n_tokens * self._reading.seconds / self._reading.amount if self._reading.amount else None

    def restore_s(self, n_tokens: int) -> float | None:
        """None: it has gone on from nothing on disk yet."""
        return n_tokens * self._restoring.seconds / self._restoring.amount if self._restoring.amount else None

    def wait_s(self, n_lanes: int, n_before: float) -> float:
        """Until a lane is free for one that so many wait before, while all are taken."""
        mean_s = self._service.seconds / self._service.amount if self._service.amount else 0.0
        return mean_s * (1 + n_before) / max(n_lanes, 1)


class MovePrice:
    """Of moving a text's memory between engines."""

    def __init__(self) -> None:
        self._moved = _Sums(_FIRST_MOVE_BYTES, _FIRST_MOVE_S)

    def note(self, n_bytes: int, seconds: float) -> None:
        self._moved.note(n_bytes, seconds)

    def move_s(self, n_bytes: int) -> float:
        return n_bytes * self._moved.seconds / self._moved.amount
