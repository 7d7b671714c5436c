"""What each replica remembers: chains in slots, kept by value, in tiers. Vectorised over replicas.

Nothing is evicted one by one. What a tier holds follows from the order of value: a text lies as deep as all that is
worth more takes room (the stack property of LRU), and so much of it as lies above a tier's end is there, from its
beginning.
A text that has never come back counts as used `NEW_TEXT_S` earlier, as luced lets side requests leave first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scripts.sim.chains import Chains

Array = npt.NDArray[Any]

NEW_TEXT_S = 600.0
NEVER_S = np.float32(-1e9)


@dataclass(frozen=True)
class Tiers:
    """How many tokens each holds, and what a text's checkpoint takes of it."""

    device: float
    host: float
    disk: float = 0.0
    state: float = 0.0


@dataclass
class Found:
    """Of each prompt: how much of it the replica has, and from which tier it has to come."""

    tokens: Array
    host: Array
    disk: Array


class Slots:
    """A table of replicas by slots: which chain, how much of it, when it was used, what it is worth."""

    def __init__(self, n_replicas: int, n_slots: int) -> None:
        shape = (n_replicas, n_slots)
        self.chain = np.full(shape, -1, dtype=np.int32)
        self.length = np.zeros(shape, dtype=np.int32)
        self.size = np.zeros(shape, dtype=np.float32)
        self.value = np.full(shape, NEVER_S, dtype=np.float32)
        self.used = np.full(shape, NEVER_S, dtype=np.float32)
        self.taken = np.zeros(n_replicas)
        """The sizes of all slots together."""

    def locate(self, rows: Array, chains: Array) -> tuple[Array, Array]:
        """The slot of each chain in its row, and whether there is one."""
        same = self.chain[rows] == chains[:, None]
        slots = same.argmax(axis=1)
        return slots, same[np.arange(len(rows)), slots]

    def depth(self, rows: Array, slots: Array, room: float) -> Array:
        """The room of all that is worth at least as much as each, itself included; where all of a row fits `room`, its
        own, which is as good and costs nothing."""
        depth = self.size[rows, slots].astype(np.float64)
        crowded = np.flatnonzero(self.taken[rows] > room)
        if len(crowded) > 0:
            rows, slots = rows[crowded], slots[crowded]
            above = self.value[rows] >= self.value[rows, slots][:, None]
            depth[crowded] = np.einsum("ij,ij->i", above, self.size[rows])
        return depth


class ReplicaMemory:
    """Of all replicas."""

    def __init__(self, chains: Chains, n_replicas: int, n_slots: int, tiers: Tiers) -> None:
        self._chains = chains
        self._tiers = tiers
        self.slots = Slots(n_replicas, n_slots)
        self.lost_s = np.full(n_replicas, NEVER_S, dtype=np.float32)
        """When a replica last lost its device's and host's memory."""
        self.n_crowded_out = 0
        """Texts that left for want of a slot, not of room: above a few, `n_slots` is too small."""

    def find(self, rows: Array, chains: Array, lengths: Array) -> Found:
        n = len(rows)
        found = Found(np.zeros(n, dtype=np.int64), np.zeros(n), np.zeros(n))
        is_open = np.ones(n, dtype=bool)
        for which, at, limit in self._chains.path(chains, lengths):
            asked = is_open[which]
            self._find_own(found, rows, which[asked], at[asked], limit[asked])
            is_open[which] = found.tokens[which] <= self._chains.forked_at[at]
        return found

    def _find_own(self, found: Found, rows: Array, texts: Array, chains: Array, limit: Array) -> None:
        """What the replicas have of these chains of the texts' paths."""
        slots, has = self.slots.locate(rows[texts], chains)
        texts, chains, limit, slots = texts[has], chains[has], limit[has], slots[has]
        tokens, host, disk = self._kept(rows[texts], slots, chains, limit)
        better = tokens > found.tokens[texts]
        texts = texts[better]
        found.tokens[texts] = tokens[better]
        found.host[texts] += host[better]
        found.disk[texts] += disk[better]

    def _kept(self, rows: Array, slots: Array, chains: Array, limit: Array) -> tuple[Array, Array, Array]:
        """Of texts that have a slot: tokens up to `limit`, and how many of them lie in host and on disk."""
        table, tiers = self.slots, self._tiers
        size = table.size[rows, slots].astype(np.float64)
        begins = table.depth(rows, slots, tiers.device) - size
        fast = table.used[rows, slots] > self.lost_s[rows]  # device and host still have what was used since
        own = size - tiers.state
        on_device = np.where(fast, np.clip(tiers.device - begins, 0, own), 0)
        in_host = np.where(fast, np.clip(tiers.device + tiers.host - begins, 0, own), 0) - on_device
        on_disk = np.clip(tiers.device + tiers.host + tiers.disk - begins, 0, own) if tiers.disk > 0 else 0 * own
        forked_at = self._chains.forked_at[chains]
        ends = np.floor(np.maximum(on_device + in_host, on_disk)).astype(np.int64)
        tokens = np.minimum(np.minimum(forked_at + ends, table.length[rows, slots]), limit)
        used = np.maximum(tokens - forked_at, 0)
        host = np.clip(used - on_device, 0, in_host)
        disk = np.clip(used - on_device - in_host, 0, None)
        return np.where(ends > 0, tokens, 0), host, disk

    def keep(self, rows: Array, chains: Array, lengths: Array, now_s: float) -> None:
        """Each text is now known to its row, from its beginning; no row has one chain twice."""
        for which, at, limit in self._chains.path(chains, lengths):
            self._keep_own(rows[which], at, limit, now_s)

    def _keep_own(self, rows: Array, chains: Array, lengths: Array, now_s: float) -> None:
        table = self.slots
        slots, has = table.locate(rows, chains)
        at = rows[has], slots[has]
        table.length[at] = np.maximum(table.length[at], lengths[has])
        table.value[at] = table.used[at] = now_s
        rows, chains, lengths = rows[~has], chains[~has], lengths[~has]
        if len(rows) > 0:
            slots = table.value[rows].argmin(axis=1)
            full = table.chain[rows, slots] >= 0
            room = self._tiers.device + self._tiers.host + self._tiers.disk
            self.n_crowded_out += int((table.taken[rows[full]] < room).sum())
            new = rows, slots
            table.chain[new] = chains
            table.length[new] = lengths
            table.used[new] = now_s
            table.value[new] = now_s - NEW_TEXT_S
            at = np.concatenate((at[0], rows)), np.concatenate((at[1], slots))
        size = np.maximum(table.length[at] - self._chains.forked_at[table.chain[at]], 0) + self._tiers.state
        np.add.at(table.taken, at[0], size - table.size[at])
        table.size[at] = size

    def lose(self, replicas: Array, now_s: float) -> None:
        """Their processes are gone, and with them what device and host held."""
        self.lost_s[replicas] = now_s
        if self._tiers.disk == 0:
            self.slots.chain[replicas] = -1
            self.slots.length[replicas] = 0
            self.slots.size[replicas] = 0
            self.slots.taken[replicas] = 0
            self.slots.value[replicas] = self.slots.used[replicas] = NEVER_S

    def held(self, replicas: Array, room: float) -> tuple[Array, Array]:
        """The chains that they have something of, within so much room, and how much at most."""
        rows, slots = np.nonzero(self.slots.chain[replicas] >= 0)
        rows = replicas[rows]
        fits = self.slots.depth(rows, slots, room) <= room
        return self.slots.chain[rows[fits], slots[fits]], self.slots.length[rows[fits], slots[fits]]
