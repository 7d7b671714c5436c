"""Are two sets of samples drawn from one distribution? The chi-square test of homogeneity. Knows counts only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeVar

_LEAST_IN_BOTH = 10  # of a category: some five expected on each side, or it counts with the other rare ones

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class ChiSquare:
    statistic: float
    n_free: int
    """Degrees of freedom; 0: both sides have one category, which says nothing."""

    @property
    def p(self) -> float:
        """How often samples of one distribution are as far apart. By Wilson and Hilferty's cube root, which is within
        some tenths of the true value where it matters, below 0.01."""
        if self.n_free == 0:
            return 1.0
        spread = 2 / (9 * self.n_free)
        z = ((self.statistic / self.n_free) ** (1 / 3) - (1 - spread)) / spread**0.5
        return 1 - NormalDist().cdf(z)


def compare_samples(here: Sequence[Key], there: Sequence[Key]) -> ChiSquare:
    """REQUIRES: neither is empty."""
    counts_here, counts_there = Counter(here), Counter(there)
    table = _pool_rare(counts_here, counts_there)
    n_here, n_there = len(here), len(there)
    statistic = 0.0
    for a, b in table:
        expected_a = (a + b) * n_here / (n_here + n_there)
        expected_b = (a + b) - expected_a
        statistic += (a - expected_a) ** 2 / expected_a + (b - expected_b) ** 2 / expected_b
    return ChiSquare(statistic, len(table) - 1)


def _pool_rare(here: Mapping[Key, int], there: Mapping[Key, int]) -> list[tuple[int, int]]:
    """(here, there) of each category; the rare ones are one together, and with the rarest other one if even that is
    rare."""
    table: list[tuple[int, int]] = []
    rare_here = rare_there = 0
    for key in dict.fromkeys([*here, *there]):
        a, b = here.get(key, 0), there.get(key, 0)
        if a + b < _LEAST_IN_BOTH:
            rare_here, rare_there = rare_here + a, rare_there + b
        else:
            table.append((a, b))
    if 0 < rare_here + rare_there < _LEAST_IN_BOTH and table:
        least = min(table, key=sum)
        table.remove(least)
        rare_here, rare_there = rare_here + least[0], rare_there + least[1]
    if rare_here + rare_there > 0:
        table.append((rare_here, rare_there))
    return table
