"""When replicas go: deaths at a rate, and a restart of all, some at a time. Decides; the simulation acts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from scripts.sim.replicas import Replicas

Array = npt.NDArray[Any]

Scenario = Literal["calm", "failures", "restart", "restart-parked"]
SCENARIOS: tuple[Scenario, ...] = ("calm", "failures", "restart", "restart-parked")


@dataclass(frozen=True)
class OutageSetting:
    deaths_per_hour: float = 0.0
    """Of each replica."""
    restart_at_s: float = np.inf
    wave: float = 0.1
    """Replicas that are restarted at once; at least one."""
    drain_s: float = 60.0
    """After that, what still runs there goes on elsewhere."""
    parks: bool = False


@dataclass(frozen=True)
class Gone:
    died: Array
    stopped: Array
    """Restarted on purpose: they had time to put away what they know."""


class Outages:
    """Marks in `replicas` who takes requests, and says who goes."""

    def __init__(self, setting: OutageSetting, replicas: Replicas, restart_s: float, rng: np.random.Generator) -> None:
        self._setting = setting
        self._replicas = replicas
        self._restart_s = restart_s
        self._rng = rng
        self._back_s = np.full(replicas.n, -np.inf)
        self._draining_since = np.full(replicas.n, np.inf)
        self._next_restarted = 0

    def step(self, now_s: float, span_s: float) -> Gone:
        replicas = self._replicas
        back = np.isfinite(self._back_s) & (self._back_s <= now_s)
        replicas.can_take[back] = True
        self._back_s[back] = -np.inf
        died = self._deaths(span_s)
        self._begin_wave(now_s)
        drained = (replicas.n_open == 0) | (now_s - self._draining_since > self._setting.drain_s)
        stopped = np.flatnonzero(np.isfinite(self._draining_since) & drained)
        self._draining_since[stopped] = np.inf
        for gone in (died, stopped):
            replicas.can_take[gone] = False
            self._back_s[gone] = now_s + self._restart_s
        return Gone(died, stopped)

    def _deaths(self, span_s: float) -> Array:
        """Never the last one: without any replica there is no router to compare."""
        rate = self._setting.deaths_per_hour * span_s / 3600
        if rate <= 0:
            return np.zeros(0, dtype=np.int64)
        up = self._replicas.can_take & ~np.isfinite(self._draining_since)
        died = np.flatnonzero(up & (self._rng.random(self._replicas.n) < rate))
        return died[: max(int(self._replicas.can_take.sum()) - 1, 0)]

    def _begin_wave(self, now_s: float) -> None:
        """The next ones drain when those before are back."""
        busy = np.isfinite(self._draining_since).any() or np.isfinite(self._back_s).any()
        if now_s < self._setting.restart_at_s or busy or self._next_restarted >= self._replicas.n:
            return
        n = max(1, int(self._replicas.n * self._setting.wave))
        if self._replicas.n == 1:
            self._next_restarted = 1  # one replica alone is not restarted: nobody would be left
            return
        wave = np.arange(self._next_restarted, min(self._next_restarted + n, self._replicas.n))
        self._next_restarted += len(wave)
        self._draining_since[wave] = now_s
        self._replicas.can_take[wave] = False

    def delay(self, replicas: Array, by_s: Array) -> None:
        """They come back later by so much."""
        self._back_s[replicas] += by_s

    def back_s(self, replicas: Array) -> Array:
        return np.asarray(self._back_s[replicas])

    @property
    def restarted_share(self) -> float:
        return self._next_restarted / self._replicas.n
