"""Which replica takes a request. Each router sees what a real one would: counts of requests that it has sent, digests
or events of memory, prices. None sees another's future.

A tick's requests are chosen for together. So that they do not all take the replica that was idle when the tick began,
the n-th of them is offered the n-th least loaded one, beside the replicas that have something of its text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scripts.sim.chains import Chains
from scripts.sim.digests import Digests
from scripts.sim.hashing import uniform
from scripts.sim.prices import Prices
from scripts.sim.replicas import Replicas, Requests

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Weights:
    """What the choice by price, and by matching prefixes, weighs."""

    wait: float = 0.1
    """A second of waiting, in seconds of reading."""
    others: float = 0.0
    """What reading costs beside its own time: so much of it for each request that is open there, and waits for it."""
    lane_s: float = 0.05
    """A request that is open there, in seconds."""
    stick_s: float = 0.0
    """How much cheaper another replica must be than the session's own."""
    own: float = 1.0
    """How often the router that chooses is the one that sent the conversation's last request, and so knows what has
    been read since its replica told: 1 with one router, less with several."""
    overlap: float = 64.0
    """Prefix-aware: a token to read, in tokens that are open there."""


class Cluster:
    """What routers may ask."""

    def __init__(
        self, prices: Prices, chains: Chains, replicas: Replicas, digests: Digests, weights: Weights,
        rng: np.random.Generator, has_store: bool,
    ) -> None:  # fmt: skip
        self.prices = prices
        self.chains = chains
        self.replicas = replicas
        self.digests = digests
        self.weights = weights
        self.rng = rng
        self.has_store = has_store
        self.believed_free_s = np.zeros(replicas.n)
        """When a replica will have read what it has: what it said last, and what this router has sent since."""
        self.alive = np.arange(replicas.n)
        self.now_s = 0.0
        self._home: Array = np.full(1024, -1, dtype=np.int64)

    def look(self, now_s: float) -> None:
        """Who may get requests now."""
        self.now_s = now_s
        self.alive = np.flatnonzero(self.replicas.can_take)

    def told(self, replicas: Array, now_s: float) -> None:
        self.digests.tell(replicas, now_s)
        self.believed_free_s[replicas] = self.replicas.free_s[replicas]

    def homes(self, keys: Array) -> Array:
        """The replica that had each session's last request, or -1."""
        while len(self._home) <= keys.max(initial=0):
            self._home = np.concatenate((self._home, np.full_like(self._home, -1)))
        return self._home[keys]

    def note_homes(self, keys: Array, replicas: Array) -> None:
        self.homes(keys)  # makes room
        self._home[keys] = replicas

    def random(self, n: int) -> Array:
        return self.alive[self.rng.integers(len(self.alive), size=n)]

    def least(self, load: Array, n: int) -> Array:
        """The least loaded ones in their order, again and again if there are fewer than n."""
        loads = load[self.alive] + self.rng.random(len(self.alive)) * 1e-6
        m = min(n, len(self.alive))
        which = np.argpartition(loads, m - 1)[:m] if m < len(loads) else np.arange(m)
        return self.alive[np.resize(which[np.argsort(loads[which])], n)]

    def offers(self, requests: Requests, load: Array) -> Array:
        """For each request: where its texts were last, its session's home, one that is idle, one at random."""
        n = len(requests)
        own = self.chains.places[requests.chain]
        parents = self.chains.parent[requests.chain]
        above = np.where(parents[:, None] >= 0, self.chains.places[np.maximum(parents, 0)], -1)
        others = np.stack((self.homes(requests.key), self.least(load, n), self.random(n)), axis=1)
        return np.concatenate((own, above, others), axis=1)

    def usable(self, offered: Array) -> Array:
        return (offered >= 0) & self.replicas.can_take[np.maximum(offered, 0)]


Router = Callable[[Cluster, Requests], Array]


def at_random(cluster: Cluster, requests: Requests) -> Array:
    return cluster.random(len(requests))


def two_choices(cluster: Cluster, requests: Requests) -> Array:
    one, other = cluster.random(len(requests)), cluster.random(len(requests))
    n_open = cluster.replicas.n_open
    return np.where(n_open[one] <= n_open[other], one, other)


def sticky(cluster: Cluster, requests: Requests) -> Array:
    """Each session has an order of all replicas, drawn by its key, and goes to the first that takes requests."""
    n = cluster.replicas.n
    chosen = np.full(len(requests), -1)
    attempt = 0
    while (chosen < 0).any():
        which = np.flatnonzero(chosen < 0)
        at = (uniform(requests.key[which], attempt, 3) * n).astype(np.int64)
        takes = cluster.replicas.can_take[at]
        chosen[which[takes]] = at[takes]
        attempt += 1
    return chosen


def prefix_aware(cluster: Cluster, requests: Requests) -> Array:
    """As routers on KV events do: tokens to read there, weighed, and tokens that are open there; the least of both.
    Events are taken as instant and complete."""
    replicas, weights = cluster.replicas, cluster.weights
    load = replicas.tokens_open.astype(float)
    offered = cluster.offers(requests, load)
    which, at = np.nonzero(cluster.usable(offered))
    rows = offered[which, at]
    found = replicas.memory.find(rows, requests.chain[which], requests.prompt[which]).tokens
    cost = np.full(offered.shape, np.inf)
    cost[which, at] = weights.overlap * (requests.prompt[which] - found) + load[rows]
    return np.asarray(offered[np.arange(len(requests)), cost.argmin(axis=1)])


def by_price(cluster: Cluster, requests: Requests) -> Array:
    """The least of waiting and reading, in seconds, by what replicas told and what was sent there since."""
    replicas, weights, prices = cluster.replicas, cluster.weights, cluster.prices
    wait_s = _waits_s(cluster, requests)
    offered = cluster.offers(requests, wait_s)
    lucky, strides = cluster.digests.luckiest(requests.chain, requests.prompt, len(cluster.alive))
    offered = np.concatenate((offered, lucky[:, None]), axis=1)
    which, at = np.nonzero(cluster.usable(offered))
    rows, prompt = offered[which, at], requests.prompt[which]
    claimed = cluster.digests.claims(rows, requests.chain[which], prompt)
    claimed = np.maximum(claimed, _sent_since(cluster, requests, which, rows))
    lucky_strides = np.where(at == offered.shape[1] - 1, strides[which], 0)
    claimed = np.minimum(claimed + lucky_strides * cluster.digests.stride, prompt)
    reads_s = prices.read_s(claimed, prompt) / np.where(replicas.n_open[rows] > 0, prices.beside_lanes, 1)
    if cluster.has_store:
        stored = cluster.chains.longest(cluster.chains.stored, requests.chain, requests.prompt)[which]
        fetches_s = prices.fetch_s(np.maximum(stored - claimed, 0)) + prices.read_s(np.maximum(stored, claimed), prompt)
        reads_s = np.minimum(reads_s, np.where(stored > claimed, fetches_s, np.inf))
    read_s, price_s = np.full((2, *offered.shape), np.inf)
    read_s[which, at] = reads_s
    sticks_s = weights.stick_s * (rows == cluster.homes(requests.key)[which])
    delays_s = reads_s * (1 + weights.others * replicas.n_open[rows])
    price_s[which, at] = weights.wait * wait_s[rows] + delays_s - sticks_s
    chosen = price_s.argmin(axis=1)
    each = np.arange(len(requests))
    replica = offered[each, chosen]
    _believe(cluster, replica, read_s[each, chosen] + prices.warm_s)
    return np.asarray(replica)


def _sent_since(cluster: Cluster, requests: Requests, which: Array, rows: Array) -> Array:
    """What a replica must have of a text because the router sent it there, and the replica has told nothing since."""
    chains = requests.chain[which]
    sent_s = cluster.chains.sent_s[chains]
    sent = (cluster.chains.places[chains, 0] == rows) & (sent_s > cluster.digests.told_s[rows])
    knows = uniform(chains, requests.prompt[which], 11) < cluster.weights.own
    return np.where(sent & knows, np.minimum(cluster.chains.known[chains], requests.prompt[which]), 0)


def _waits_s(cluster: Cluster, requests: Requests) -> Array:
    """At each replica: until all is read that it has, and what its open requests weigh; with all lanes taken, as long
    as it takes until one of them ends."""
    replicas, prices = cluster.replicas, cluster.prices
    wait_s = np.maximum(cluster.believed_free_s - cluster.now_s, 0)
    over = np.maximum(replicas.n_open + 1 - prices.max_lanes, 0)
    answer_s = float(requests.answer.mean()) * float(prices.step_s(np.array(prices.max_lanes), np.array(0)))
    return np.asarray(wait_s + cluster.weights.lane_s * replicas.n_open + over * answer_s / prices.max_lanes)


def _believe(cluster: Cluster, replica: Array, takes_s: Array) -> None:
    free_s = cluster.believed_free_s
    free_s[replica] = np.maximum(free_s[replica], cluster.now_s)
    np.add.at(free_s, replica, takes_s)


ROUTERS: Mapping[str, Router] = {
    "random": at_random,
    "two-choices": two_choices,
    "sticky": sticky,
    "prefix-aware": prefix_aware,
    "ours": by_price,
}
