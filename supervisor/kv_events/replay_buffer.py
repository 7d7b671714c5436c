"""ReplayBuffer: the last batches that were published, for subscribers that have missed some. Bounded. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class ReplayBuffer:
    def __init__(self, *, max_steps: int, max_bytes: int) -> None:
        self._max_steps = max_steps
        self._max_bytes = max_bytes
        self._n_bytes = 0
        self._batches: deque[tuple[int, bytes]] = deque()

    def append(self, number: int, payload: bytes) -> None:
        self._batches.append((number, payload))
        self._n_bytes += len(payload)
        while len(self._batches) > self._max_steps or self._n_bytes > self._max_bytes:
            self._n_bytes -= len(self._batches.popleft()[1])

    def since(self, number: int) -> Sequence[tuple[int, bytes]] | None:
        """All batches from this one on; None: the first of them are not here any more."""
        if not self._batches or number < self._batches[0][0]:
            return None
        return [batch for batch in self._batches if batch[0] >= number]
