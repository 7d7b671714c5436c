"""What follows from the counts of a record, and their sums: what records.py's classes can do. Knows no line."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Self


class Sums:
    """Records of one kind are added up field by field."""

    __slots__ = ()

    def __add__(self, other: Self) -> Self:
        record: Any = self
        sums = {entry.name: getattr(self, entry.name) + getattr(other, entry.name) for entry in fields(record)}
        return type(self)(**sums)


class SpeculationRatios(Sums):
    __slots__ = ()

    n_drafted: int
    n_accepted: int
    n_steps: int
    n_speculated_steps: int

    @property
    def acceptance(self) -> float | None:
        """None: nothing was drafted."""
        return self.n_accepted / self.n_drafted if self.n_drafted > 0 else None

    @property
    def tokens_per_step(self) -> float | None:
        """Those that a step has accepted, and the one that it gives anyway. None: there was no step."""
        return 1 + self.n_accepted / self.n_steps if self.n_steps > 0 else None

    @property
    def speculated_share(self) -> float | None:
        """Of the steps. None: there was none."""
        return self.n_speculated_steps / self.n_steps if self.n_steps > 0 else None


class HitShare(Sums):
    __slots__ = ()

    n_hits: int
    n_misses: int

    @property
    def hit_share(self) -> float | None:
        """None: nothing was read."""
        n_reads = self.n_hits + self.n_misses
        return self.n_hits / n_reads if n_reads > 0 else None
