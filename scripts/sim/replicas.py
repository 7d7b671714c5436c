"""The replicas' engines: each reads one prompt after the other and decodes all lanes together, between slices of
reading. Vectorised over replicas and over requests; knows prices and memory, no router and no session.

Reading has priority: beside it lanes get one token a slice. All lanes of a replica decode at one pace, so a replica
counts the tokens that a lane would have got so far (its pace), and an answer ends when that count has grown by its
length.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from scripts.sim.chains import Chains
from scripts.sim.memory import ReplicaMemory
from scripts.sim.prices import Prices

Array = npt.NDArray[Any]


@dataclass
class Requests:
    """Columns of as many requests; each is one attempt at a replica."""

    actor: Array
    chain: Array
    prompt: Array
    answer: Array
    key: Array
    asked_s: Array
    """When the client asked; of one that goes on elsewhere, when its replica was lost."""
    is_resumed: Array
    """Its first token has been sent before."""
    replica: Array
    first_s: Array
    ends_at: Array
    """The replica's pace at which it ends."""

    def __len__(self) -> int:
        return len(self.actor)

    def take(self, which: Array) -> Requests:
        return Requests(*[getattr(self, name)[which] for name in _COLUMNS])

    @staticmethod
    def joined(parts: list[Requests]) -> Requests:
        parts = [part for part in parts if len(part)] or parts[:1]
        if len(parts) == 1:
            return parts[0]
        return Requests(*[np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS])

    @staticmethod
    def new(actor: Array, chain: Array, prompt: Array, answer: Array, key: Array, asked_s: Array) -> Requests:
        n = len(actor)
        return Requests(
            actor, chain, prompt, answer, key, asked_s, np.zeros(n, dtype=bool), np.full(n, -1), np.zeros(n),
            np.zeros(n),
        )  # fmt: skip

    @staticmethod
    def none() -> Requests:
        empty = np.zeros(0, dtype=np.int64)
        return Requests.new(empty, empty, empty, empty, empty, np.zeros(0))


_COLUMNS = tuple(field.name for field in fields(Requests))


@dataclass(frozen=True)
class Admitted:
    """What became of prompts: where their tokens came from."""

    requests: Requests
    found: Array
    fetched: Array
    read: Array
    read_by_ideal: Array
    """What one server without end would have read."""
    restored_bytes: Array
    waited_s: Array


class Replicas:
    def __init__(self, prices: Prices, chains: Chains, memory: ReplicaMemory, n: int, has_store: bool) -> None:
        self._prices = prices
        self._chains = chains
        self.memory = memory
        self._has_store = has_store
        self.n = n
        self.can_take = np.ones(n, dtype=bool)
        self.free_s = np.zeros(n)
        """When all that was admitted has been read."""
        self.n_open = np.zeros(n, dtype=np.int64)
        """Requests that were sent there and have not ended."""
        self.tokens_open = np.zeros(n, dtype=np.int64)
        self._reading_s = np.zeros(n)
        """For all that was admitted."""
        self._n_admitted = np.zeros(n, dtype=np.int64)
        self._pace = np.zeros(n)
        self._decoding_s = np.zeros(n)
        self._waiting = Requests.none()
        self._reading = Requests.none()
        self._decoding = Requests.none()

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    def send(self, requests: Requests) -> None:
        np.add.at(self.n_open, requests.replica, 1)
        np.add.at(self.tokens_open, requests.replica, requests.prompt)
        self._waiting = Requests.joined([self._waiting, requests])

    def admit(self, now_s: float) -> list[Admitted]:
        """Whoever finds a lane; one a replica and round, so that the second knows what the first one brings."""
        rounds = []
        while len(self._waiting) > 0:
            _, first = np.unique(self._waiting.replica, return_index=True)
            has_lane = self._n_admitted[self._waiting.replica[first]] < self._prices.max_lanes
            chosen = first[has_lane]
            if len(chosen) == 0:
                break
            stays = np.ones(len(self._waiting), dtype=bool)
            stays[chosen] = False
            rounds.append(self._begin(self._waiting.take(chosen), now_s))
            self._waiting = self._waiting.take(np.flatnonzero(stays))
        return rounds

    def _begin(self, requests: Requests, now_s: float) -> Admitted:
        prices, rows = self._prices, requests.replica
        found = self.memory.find(rows, requests.chain, requests.prompt)
        fetched, fetch_s = self._worth_fetching(requests, found.tokens)
        n_known = found.tokens + fetched
        lanes = self._n_admitted[rows] > 0
        reads_s = prices.read_s(n_known, requests.prompt) / np.where(lanes, prices.beside_lanes, 1.0)
        starts_s = np.maximum(np.maximum(self.free_s[rows], requests.asked_s), now_s)
        takes_s = prices.warm_s + prices.restore_s(found.host, found.disk) + fetch_s + reads_s
        requests.first_s = starts_s + takes_s
        self.free_s[rows] = requests.first_s
        self._reading_s[rows] += takes_s
        self._n_admitted[rows] += 1
        ideal = requests.prompt - self._chains.longest(self._chains.known, requests.chain, requests.prompt)
        self._chains.note_known(requests.chain, requests.prompt + requests.answer)
        self.memory.keep(rows, requests.chain, requests.prompt + requests.answer, now_s)
        self._reading = Requests.joined([self._reading, requests])
        restored = (found.host + found.disk) * prices.kv_bytes
        return Admitted(
            requests, found.tokens, fetched, requests.prompt - n_known, ideal, restored, starts_s - requests.asked_s
        )

    def _worth_fetching(self, requests: Requests, found: Array) -> tuple[Array, Array]:
        if not self._has_store:
            return np.zeros(len(found), dtype=np.int64), np.zeros(len(found))
        stored = self._chains.longest(self._chains.stored, requests.chain, requests.prompt)
        more = np.maximum(stored - found, 0)
        fetch_s = self._prices.fetch_s(more)
        pays = (more > 0) & (fetch_s < self._prices.read_s(found, found + more))
        return np.where(pays, more, 0), np.where(pays, fetch_s, 0)

    def advance(self, begin_s: float, end_s: float) -> tuple[Requests, Requests, Array]:
        """Lets time pass. Returns whose first token came, whose answer ended, and when."""
        span_s = end_s - begin_s
        came = self._reading.first_s < end_s
        started = self._reading.take(np.flatnonzero(came))
        self._reading = self._reading.take(np.flatnonzero(~came))
        n_lanes = np.bincount(self._decoding.replica, minlength=self.n)
        behind = np.bincount(self._decoding.replica, self._decoding.prompt, minlength=self.n)
        step_s = self._prices.step_s(np.maximum(n_lanes, 1), behind)
        reading_s = np.clip(self.free_s - begin_s, 0, span_s)
        gained = reading_s / (self._prices.slice_s + step_s) + (span_s - reading_s) / step_s
        self._decoding_s += np.where(n_lanes > 0, span_s - reading_s, 0)
        pace = self._pace.copy()
        self._pace += gained
        within = np.clip((started.first_s - begin_s) / span_s, 0, 1)
        started.ends_at = pace[started.replica] + gained[started.replica] * within + started.answer
        self._decoding = Requests.joined([self._decoding, started])
        done = self._decoding.ends_at <= self._pace[self._decoding.replica]
        ended = self._decoding.take(np.flatnonzero(done))
        self._decoding = self._decoding.take(np.flatnonzero(~done))
        at = (ended.ends_at - pace[ended.replica]) / gained[ended.replica]
        ended_s = np.maximum(begin_s + span_s * np.clip(at, 0, 1), ended.first_s)
        np.add.at(self.n_open, ended.replica, -1)
        np.add.at(self._n_admitted, ended.replica, -1)
        np.add.at(self.tokens_open, ended.replica, -ended.prompt)
        return started, ended, ended_s

    def work_s(self, now_s: float) -> Array:
        """How long each replica's device has been at work."""
        return np.asarray(self._reading_s - np.maximum(self.free_s - now_s, 0) + self._decoding_s)

    def lose(self, replicas: Array, now_s: float, back_s: Array) -> Requests:
        """Their processes die. Returns what was under way there, as what is left to ask."""
        gone = np.zeros(self.n, dtype=bool)
        gone[replicas] = True
        lost = []
        for name in ("_waiting", "_reading", "_decoding"):
            requests: Requests = getattr(self, name)
            dies = gone[requests.replica] if len(requests) else np.zeros(0, dtype=bool)
            dying = requests.take(np.flatnonzero(dies))
            setattr(self, name, requests.take(np.flatnonzero(~dies)))
            if name == "_decoding" and len(dying):
                left = np.maximum(np.ceil(dying.ends_at - self._pace[dying.replica]), 1).astype(np.int64)
                dying.prompt = dying.prompt + dying.answer - left
                dying.answer = left
                dying.asked_s = np.full(len(dying), now_s)
                dying.is_resumed = np.ones(len(dying), dtype=bool)
            lost.append(dying)
        self._reading_s[replicas] += np.maximum(back_s - now_s, 0) - np.maximum(self.free_s[replicas] - now_s, 0)
        self.n_open[replicas] = self.tokens_open[replicas] = self._n_admitted[replicas] = 0
        self.free_s[replicas] = back_s
        self.memory.lose(replicas, now_s)
        return Requests.joined(lost)
