"""How far a share, or the difference of two, may be off: intervals that hold in 95 of 100 evaluations. Pure.

Both begin with Wilson's interval, which has a width at 0 and 1 too. There a bootstrap has none: resampling ten right
answers gives ten right answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_Z = 1.959964  # of the normal distribution: 95 % lie within


@dataclass(frozen=True, slots=True)
class Interval:
    value: float
    low: float
    high: float


def share(scores: Sequence[float]) -> Interval:
    """The mean of scores from 0 to 1, with Wilson's interval. Scores between the two ends vary less than a coin of the
    same mean, so for them it is wide rather than narrow. REQUIRES: a score."""
    n, mean = len(scores), math.fsum(scores) / len(scores)
    middle = (mean + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(mean * (1 - mean) / n + _Z**2 / (4 * n**2))
    # At the ends rounding would leave the mean outside.
    return Interval(mean, min(max(middle - half, 0.0), mean), max(min(middle + half, 1.0), mean))


def difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """first - second, both of the same questions: the two Wilson intervals added as squares, less what the pairs have
    in common (Newcombe 1998, method 10). REQUIRES: as many of one as of the other, and one at least."""
    a, b = share(first), share(second)
    together = _correlation(first, second)
    value = a.value - b.value

    def reach(down: float, up: float) -> float:
        return math.sqrt(max(down**2 - 2 * together * down * up + up**2, 0.0))

    low = value - reach(a.value - a.low, b.high - b.value)
    high = value + reach(a.high - a.value, b.value - b.low)
    return Interval(value, max(low, -1.0), min(high, 1.0))


def _correlation(first: Sequence[float], second: Sequence[float]) -> float:
    n = len(first)
    mean_a, mean_b = math.fsum(first) / n, math.fsum(second) / n
    pairs = [(a - mean_a, b - mean_b) for a, b in zip(first, second, strict=True)]
    spread = math.sqrt(math.fsum(a * a for a, _ in pairs) * math.fsum(b * b for _, b in pairs))
    return math.fsum(a * b for a, b in pairs) / spread if spread > 0 else 0.0
