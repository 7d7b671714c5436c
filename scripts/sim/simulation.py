"""One run: agents ask, a router chooses, replicas read and answer, some are lost. Time goes in ticks; what happens
within one has its exact time, but is seen by routers at the next.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from scripts.sim.chains import Chains
from scripts.sim.digests import Digests, DigestSetting
from scripts.sim.figures import Figures, Tally
from scripts.sim.memory import ReplicaMemory, Tiers
from scripts.sim.outages import Outages, OutageSetting
from scripts.sim.prices import Prices
from scripts.sim.replicas import Replicas, Requests
from scripts.sim.routers import ROUTERS, Cluster, Weights, sticky
from scripts.sim.sessions import Sessions
from scripts.sim.trace_shape import Shape

Array = npt.NDArray[Any]

EVENT_BYTES = 64  # of a KV event about a page
PAGE_TOKENS = 64


@dataclass(frozen=True)
class Plan:
    router: str
    n_replicas: int
    load: float = 0.7
    """Of what all replicas could do with their lanes full, if no token were read twice."""
    duration_s: float = 1800.0
    """Behind the warm-up."""
    warm_up_s: float = 600.0
    tick_s: float = 0.25
    seed: int = 1
    store: Literal["none", "parked", "behind"] = "none"
    """What lies in the object store: nothing; what a replica parks before it restarts; every turn."""
    outages: OutageSetting = field(default_factory=OutageSetting)
    digest: DigestSetting = field(default_factory=DigestSetting)
    weights: Weights = field(default_factory=Weights)


def n_sessions(plan: Plan, prices: Prices, shape: Shape) -> int:
    """So many agents make that load, if nobody waits for others."""
    prompt, answer = shape.mean_prompt, shape.mean_answer
    lanes = np.array(prices.max_lanes)
    full_step_s = float(prices.step_s(lanes, lanes * prompt))
    reads_s = prices.warm_s + float(prices.read_s(max(prompt - shape.mean_growth + answer, 0), prompt))
    work_s = reads_s + answer * full_step_s / prices.max_lanes
    turns_s = plan.load / work_s  # a replica and second
    used = np.array(max(round(prices.max_lanes * plan.load), 1))
    step_s = float(prices.step_s(used, used * prompt)) / max(1 - turns_s * reads_s, 0.1)
    cycle_s = shape.mean_pause_s + reads_s + answer * step_s
    return max(1, round(plan.n_replicas * turns_s * cycle_s))


class Simulation:
    def __init__(self, plan: Plan, prices: Prices, shape: Shape) -> None:
        self.plan = plan
        self.prices = prices
        sessions_rng, router_rng, outage_rng = (
            np.random.default_rng(seed) for seed in np.random.SeedSequence(plan.seed).spawn(3)
        )
        self.chains = Chains()
        tiers = Tiers(prices.device_tokens, prices.host_tokens, prices.disk_tokens, prices.state_tokens)
        room = tiers.device + tiers.host + tiers.disk
        n_slots = int(np.clip(room / (0.25 * shape.mean_prompt + tiers.state), 32, 512))
        memory = ReplicaMemory(self.chains, plan.n_replicas, n_slots, tiers)
        has_store = plan.store != "none"
        self.replicas = Replicas(prices, self.chains, memory, plan.n_replicas, has_store)
        digests = Digests(self.chains, memory, plan.digest, room)
        self.cluster = Cluster(prices, self.chains, self.replicas, digests, plan.weights, router_rng, has_store)
        self.sessions = Sessions(shape, self.chains, n_sessions(plan, prices, shape), sessions_rng)
        self.outages = Outages(plan.outages, self.replicas, prices.restart_s, outage_rng)
        self.tally = Tally()
        self._route = ROUTERS[plan.router]
        self._tells_s = router_rng.random(plan.n_replicas) * plan.digest.period_s
        self._resent: list[Requests] = []
        self._room = room

        self._begin_warm()

    def _begin_warm(self) -> None:
        """Each session has been read at one replica, the one that its key draws: else all would be read at once."""
        s, main = self.sessions, np.arange(self.sessions.n_sessions)
        self.cluster.look(0.0)
        asked = Requests.new(main, s.chain[main], s.prompt[main], s.answer[main], s.key[main], s.due_s[main])
        rows, lengths = sticky(self.cluster, asked), s.known[main]
        self.chains.note_known(asked.chain, lengths)
        self.chains.note_place(asked.chain, rows, np.full(len(rows), -np.inf))
        self.cluster.note_homes(asked.key, rows)
        while len(rows) > 0:
            _, first = np.unique(rows, return_index=True)
            self.replicas.memory.keep(rows[first], asked.chain[main[first]], lengths[first], 0.0)
            rows, main, lengths = (np.delete(column, first) for column in (rows, main, lengths))
        self.cluster.told(np.arange(self.plan.n_replicas), 0.0)

    def run(self) -> Figures:
        plan, began_s = self.plan, time.process_time()
        n_warm = round(plan.warm_up_s / plan.tick_s)
        n_ticks = n_warm + round(plan.duration_s / plan.tick_s)
        work_s, told = self.replicas.work_s(0.0), 0
        for tick in range(n_ticks):
            if tick == n_warm:
                self.tally = Tally()
                work_s = self.replicas.work_s(plan.warm_up_s)
                told = self.cluster.digests.n_bytes_told
            self._tick(tick * plan.tick_s, (tick + 1) * plan.tick_s)
        return self.tally.figures(
            self.replicas.work_s(n_ticks * plan.tick_s) - work_s, plan.duration_s, self._knowledge_bytes(told),
            self.replicas.memory.n_crowded_out, time.process_time() - began_s,
        )  # fmt: skip

    def _knowledge_bytes(self, told_before: int) -> float:
        """What routers were told: digests, or an event for each page that was read."""
        if self.plan.router == "ours":
            return self.cluster.digests.n_bytes_told - told_before
        return self.tally.read / PAGE_TOKENS * EVENT_BYTES if self.plan.router == "prefix-aware" else 0.0

    def _tick(self, now_s: float, end_s: float) -> None:
        self._lose(now_s, end_s - now_s)
        self.cluster.look(now_s)
        if self.plan.router == "ours":
            tells = np.flatnonzero(self._tells_s <= now_s)
            self.cluster.told(tells, now_s)
            self._tells_s[tells] += self.plan.digest.period_s
        self._send(now_s, end_s)
        for admitted in self.replicas.admit(now_s):
            self.tally.admitted(admitted, self.prices.kv_bytes, self.prices.state_bytes)
        started, ended, ended_s = self.replicas.advance(now_s, end_s)
        self.tally.started(started)
        self.tally.ended(ended, ended_s)
        if self.plan.store == "behind":
            self._store(ended.chain, ended.prompt + ended.answer)
        self.sessions.answered(ended.actor, ended_s)

    def _send(self, now_s: float, end_s: float) -> None:
        due = self.sessions.due_before(end_s)
        s = self.sessions
        asked = Requests.new(due, s.chain[due], s.prompt[due], s.answer[due], s.key[due], s.due_s[due])
        requests = Requests.joined([*self._resent, asked])
        self._resent = [requests]
        if len(requests) == 0 or len(self.cluster.alive) == 0:
            return
        self._resent = []
        requests.replica = self._route(self.cluster, requests)
        self.tally.sent(self.chains.places[requests.chain, 0], requests.replica)
        self.chains.note_place(requests.chain, requests.replica, np.maximum(requests.asked_s, now_s))
        self.cluster.note_homes(requests.key, requests.replica)
        self.replicas.send(requests)

    def _store(self, chains: Array, lengths: Array) -> None:
        more = np.maximum(lengths - np.maximum(self.chains.stored[chains], self.chains.forked_at[chains]), 0)
        np.maximum.at(self.chains.stored, chains, lengths)
        self.tally.stored_bytes += float(more.sum() * self.prices.kv_bytes + len(more) * self.prices.state_bytes)

    def _lose(self, now_s: float, span_s: float) -> None:
        gone = self.outages.step(now_s, span_s)
        if len(gone.stopped) > 0 and self.plan.outages.parks:
            before = self.tally.stored_bytes
            self._store(*self.replicas.memory.held(gone.stopped, self._room))
            parked = (self.tally.stored_bytes - before) / len(gone.stopped)
            self.outages.delay(gone.stopped, np.full(len(gone.stopped), parked / self.prices.store_bytes_s))
        for replicas in (gone.died, gone.stopped):
            if len(replicas) > 0:
                self.cluster.digests.forget(replicas)
                self._resent.append(self.replicas.lose(replicas, now_s, self.outages.back_s(replicas)))
