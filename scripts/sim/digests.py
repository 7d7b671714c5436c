"""What a router knows of each replica's memory: a bounded digest of the names of prefixes, as old as the last time the
replica told its stats.

A name stands for each `stride` tokens of a text. A digest is a Bloom filter (all names, some false ones) or a set (no
false ones, but only as many as have room, the most valuable texts first). Whether a false name is in a filter is drawn
by name, with the probability that a filter of this size and fill has (tests hold it against real ones): the same name
gets the same answer as long as the filter does not change. A match is walked from the prompt's beginning, so a false
name makes it a stride longer, two false ones two strides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from scripts.sim.chains import Chains
from scripts.sim.hashing import uniform
from scripts.sim.memory import ReplicaMemory, Slots

Array = npt.NDArray[Any]

NAME_BYTES = 8  # of a set's names


@dataclass(frozen=True)
class DigestSetting:
    kind: Literal["bloom", "set"] = "bloom"
    n_bytes: int = 16384
    stride: int = 1024
    period_s: float = 2.0


def false_rate(n_names: Array, n_bytes: int) -> Array:
    """Of a Bloom filter with as many hashes as suit its fill."""
    bits_per_name = 8 * n_bytes / np.maximum(n_names, 1)
    n_hashes = np.clip(np.round(bits_per_name * math.log(2)), 1, 16)
    return np.asarray((1 - np.exp(-n_hashes / bits_per_name)) ** n_hashes)


class Digests:
    """Of all replicas. They tell one after the other, each every `period_s`."""

    def __init__(self, chains: Chains, memory: ReplicaMemory, setting: DigestSetting, room_tokens: float) -> None:
        self._chains = chains
        self._memory = memory
        self._setting = setting
        self._room_names = room_tokens / setting.stride
        self.stride = setting.stride
        n_replicas, n_slots = memory.slots.chain.shape
        self._told = Slots(n_replicas, n_slots)
        self.false_rate = np.zeros(n_replicas)
        self.told_s = np.full(n_replicas, -np.inf)
        self.n_bytes_told = 0

    def tell(self, replicas: Array, now_s: float) -> None:
        """Their digests are now what they remember now."""
        self.told_s[replicas] = now_s
        told, slots, stride = self._told, self._memory.slots, self._setting.stride
        told.chain[replicas] = slots.chain[replicas]
        told.length[replicas] = slots.length[replicas]
        told.value[replicas] = slots.value[replicas]
        told.size[replicas] = np.ceil(slots.size[replicas] / stride)
        told.taken[replicas] = told.size[replicas].sum(axis=1)
        self.n_bytes_told += len(replicas) * self._setting.n_bytes
        if self._setting.kind == "bloom":
            n_names = np.minimum(told.taken[replicas], self._room_names)
            self.false_rate[replicas] = false_rate(n_names, self._setting.n_bytes)

    def forget(self, replicas: Array) -> None:
        """They are gone; what comes back there has told nothing yet."""
        self._told.chain[replicas] = -1
        self._told.taken[replicas] = 0
        self.false_rate[replicas] = 0

    def claims(self, replicas: Array, chains: Array, lengths: Array) -> Array:
        """How many tokens of each text its replica's digest says to have."""
        claimed = self._true_claims(replicas, chains, lengths)
        if self._setting.kind == "bloom":
            claimed = claimed + self.false_strides(replicas, chains, claimed) * self._setting.stride
        return np.minimum(claimed, lengths)

    def _true_claims(self, replicas: Array, chains: Array, lengths: Array) -> Array:
        told, stride = self._told, self._setting.stride
        n_names = self._setting.n_bytes / NAME_BYTES if self._setting.kind == "set" else math.inf
        room = min(n_names, self._room_names)
        claimed = np.zeros(len(chains), dtype=np.int64)
        for which, at, limit in self._chains.path(chains, lengths):
            slots, has = told.locate(replicas[which], at)
            texts, slots = which[has], slots[has]
            rows = replicas[texts]
            size = told.size[rows, slots]
            kept = np.clip(room - told.depth(rows, slots, room) + size, 0, size) * stride
            length = np.minimum(told.length[rows, slots], self._chains.forked_at[at[has]] + kept.astype(np.int64))
            claimed[texts] = np.maximum(claimed[texts], np.where(kept > 0, np.minimum(length, limit[has]), 0))
        return claimed // stride * stride

    def false_strides(self, replicas: Array, chains: Array, claimed: Array) -> Array:
        """How many false names follow one another behind what is truly there."""
        rate = self.false_rate[replicas]
        drawn = np.log(uniform(replicas, chains, claimed))
        return np.where(rate > 0, drawn / np.log(np.clip(rate, 1e-12, 1 - 1e-12)), 0).astype(np.int64)

    def luckiest(self, chains: Array, lengths: Array, n_alive: int) -> tuple[Array, Array]:
        """Of all replicas that have nothing of a text, one that claims most by chance, and how many strides."""
        rate = float(self.false_rate.mean())
        if self._setting.kind != "bloom" or rate <= 0 or n_alive < 2:
            return np.full(len(chains), -1), np.zeros(len(chains), dtype=np.int64)
        drawn = uniform(chains, lengths, 7)
        # The largest of n draws: each is at least j with probability rate ** j.
        largest = np.log1p(-(drawn ** (1 / n_alive))) / math.log(min(rate, 1 - 1e-12))
        which = (uniform(chains, lengths, 8) * len(self.false_rate)).astype(np.int64)
        return which, np.maximum(largest, 0).astype(np.int64)
