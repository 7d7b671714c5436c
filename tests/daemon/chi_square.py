"""Whether two samples may come from one distribution: Pearson's two-sample test at a level of one in a million."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from math import sqrt

LEAST = 5.0
"""Expected in a cell; rarer outcomes are put together."""
Z = 4.7534
"""What a normal variable exceeds once in a million times."""
FEW = (0.0, 23.93, 27.63, 30.66, 33.38)
"""The limits for few degrees of freedom, by the tables."""


def limit_of(n_free: int) -> float:
    """Wilson and Hilferty's approximation (1931), a little high."""
    if n_free < len(FEW):
        return FEW[n_free]
    spread = 2 / (9 * n_free)
    return float(n_free * (1 - spread + Z * sqrt(spread)) ** 3)


def excess(first: Iterable[Hashable], second: Iterable[Hashable]) -> float:
    """The statistic by its limit: above 1 is not by chance."""
    a, b = Counter(first), Counter(second)
    n_a, n_b = a.total(), b.total()
    share = n_a / (n_a + n_b)
    cells: list[tuple[int, int]] = []
    rest = (0, 0)
    for outcome in a.keys() | b.keys():
        if (a[outcome] + b[outcome]) * min(share, 1 - share) >= LEAST:
            cells.append((a[outcome], b[outcome]))
        else:
            rest = (rest[0] + a[outcome], rest[1] + b[outcome])
    if sum(rest) * min(share, 1 - share) >= LEAST:
        cells.append(rest)
    assert len(cells) > 1, "all outcomes are the same: nothing is tested"
    statistic = 0.0
    for seen_a, seen_b in cells:
        mean_a, mean_b = (seen_a + seen_b) * share, (seen_a + seen_b) * (1 - share)
        statistic += (seen_a - mean_a) ** 2 / mean_a + (seen_b - mean_b) ** 2 / mean_b
    return statistic / limit_of(len(cells) - 1)
