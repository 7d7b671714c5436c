"""How long a long command will take: what is expected of its steps, put right by how long those took that are done.
Pure: it is told the clock."""

from __future__ import annotations

from collections.abc import Sequence

_TRUST = 0.05  # of the whole: so much of it has to be done before the steps count as much as what was expected
_MINUTE_S = 60
_HOUR_S = 3600


class TimeLeft:
    def __init__(self, expected_s: Sequence[float]) -> None:
        """Of each step, in their order."""
        self._expected_s = list(expected_s)
        self._n_done = 0
        self._spent_s = 0.0

    def end_step(self, seconds: float) -> None:
        self._n_done += 1
        self._spent_s += seconds

    @property
    def left_s(self) -> float:
        done_s, left_s = sum(self._expected_s[: self._n_done]), sum(self._expected_s[self._n_done :])
        trust_s = _TRUST * (done_s + left_s)
        return left_s * (self._spent_s + trust_s) / (done_s + trust_s) if left_s > 0 else 0.0


def in_words(seconds: float) -> str:
    """About so long: 40 s, 12 min, 3.5 h."""
    if seconds < _MINUTE_S:
        return f"{max(round(seconds), 1)} s"
    if seconds < _HOUR_S:
        return f"{round(seconds / _MINUTE_S)} min"
    return f"{seconds / _HOUR_S:.1f} h"
