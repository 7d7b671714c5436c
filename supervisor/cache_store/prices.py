"""What transfers from the store cost here, as a running estimate. Pure: times are told.

An estimate that nobody has confirmed for a while is no estimate any more: the next to ask tries again.
"""

from __future__ import annotations

_SHARE = 0.3  # of a new sample
_LEAST_BYTES = 1 << 16
_HOLDS_S = 60.0


class TransferPrice:
    """Seconds for so many bytes, in as many streams as there are."""

    def __init__(self) -> None:
        self._bytes_per_s: float | None = None
        self._latency_s = 0.0
        self._noted_s = 0.0

    @property
    def bytes_per_s(self) -> float | None:
        return self._bytes_per_s

    def note(self, n_bytes: int, took_s: float, now_s: float) -> None:
        """Also of a transfer that was given up: so many bytes had come by then."""
        self._noted_s = now_s
        if n_bytes < _LEAST_BYTES and self._bytes_per_s is None:
            self._latency_s = took_s
            return
        rate = max(n_bytes, 1) / max(took_s, 1e-6)
        before = self._bytes_per_s
        self._bytes_per_s = rate if before is None else before + _SHARE * (rate - before)
        if rate < (before or 0) / 4:
            self._bytes_per_s = rate  # a store that has become this slow is believed at once

    def seconds(self, n_bytes: int, now_s: float) -> float | None:
        """None: nobody knows, or not for long enough."""
        if self._bytes_per_s is None or now_s - self._noted_s > _HOLDS_S:
            return None
        return self._latency_s + n_bytes / self._bytes_per_s
