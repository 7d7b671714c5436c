"""Which texts there are. A chain is a text that grows at its end; it may begin as another one (its parent) up to where
it forks: conversations with the head of their client, sub-agents with a conversation. So a prefix is a chain and a
length, and no page is ever counted one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

N_PLACES = 4
MAX_DEPTH = 3


class Chains:
    """Grows as sessions begin; nothing is ever taken out."""

    def __init__(self) -> None:
        self._n = 0
        self._capacity = 1024
        self.parent = np.full(self._capacity, -1, dtype=np.int32)
        self.forked_at = np.zeros(self._capacity, dtype=np.int64)
        self.known = np.zeros(self._capacity, dtype=np.int64)
        """Tokens that anybody has ever read or written: what one server without end would have."""
        self.stored = np.zeros(self._capacity, dtype=np.int64)
        """Tokens that lie in the object store."""
        self.places = np.full((self._capacity, N_PLACES), -1, dtype=np.int32)
        """The replicas that had it last, the latest first."""

        self.sent_s = np.full(self._capacity, -np.inf)
        """When a router last sent a request of it somewhere: to `places[:, 0]`."""

    def __len__(self) -> int:
        return self._n

    def begin(self, parents: Array, forked_at: Array) -> Array:
        """New chains; a parent of -1 is none."""
        ids = np.arange(self._n, self._n + len(parents))
        self._n += len(parents)
        while self._n > self._capacity:
            self._double()
        self.parent[ids] = parents
        self.forked_at[ids] = np.where(parents >= 0, forked_at, 0)
        return ids

    def _double(self) -> None:
        for name, empty in (("parent", -1), ("forked_at", 0), ("known", 0), ("stored", 0), ("places", -1),
                            ("sent_s", -np.inf)):  # fmt: skip
            old = getattr(self, name)
            setattr(self, name, np.concatenate((old, np.full_like(old, empty))))
        self._capacity *= 2

    def path(self, chains: Array, lengths: Array) -> Iterator[tuple[Array, Array, Array]]:
        """From each text's own chain up to its head: which texts have one there, which, and how far it is theirs."""
        which = np.arange(len(chains))
        for _ in range(MAX_DEPTH):
            yield which, chains, lengths
            parents = self.parent[chains]
            has = parents >= 0
            if not has.any():
                return
            lengths = np.minimum(lengths, self.forked_at[chains])[has]
            which, chains = which[has], parents[has]

    def longest(self, of: Array, chains: Array, lengths: Array) -> Array:
        """How much of each text's beginning `of` (`known` or `stored`) has."""
        found = np.zeros(len(chains), dtype=np.int64)
        for which, at, limit in self.path(chains, lengths):
            found[which] = np.maximum(found[which], np.minimum(of[at], limit))
        return found

    def note_known(self, chains: Array, lengths: Array) -> None:
        for _, at, limit in self.path(chains, lengths):
            np.maximum.at(self.known, at, limit)

    def note_place(self, chains: Array, replicas: Array, sent_s: Array) -> None:
        self.sent_s[chains] = sent_s
        places = self.places[chains]
        is_new = places[:, 0] != replicas
        chains, replicas, places = chains[is_new], replicas[is_new], places[is_new]
        self.places[chains, 1:] = places[:, :-1]
        self.places[chains, 0] = replicas
