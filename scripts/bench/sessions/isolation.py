"""What two features bring, each alone and both together: the same sessions, at their pace, with neither, the one, the
other and both, in turns. Keeps the clock; must not know how a table looks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import psutil

from luce.supervisor import SupervisorConfig
from scripts.bench.harness import Ratio, in_turns
from scripts.bench.replay.prompts import Prepared
from scripts.bench.replay.run import Pass, fresh_target, play
from scripts.bench.sessions.features import Parts, arm

Arm = tuple[bool, bool]
ARMS: tuple[Arm, ...] = ((False, False), (True, False), (False, True), (True, True))


@dataclass(frozen=True)
class Plan:
    """How sessions are played."""

    max_tokens: int
    n_agents: int
    pace: float
    """Recorded pauses, scaled; 0: none."""
    timeout_s: float


@dataclass(frozen=True)
class Played:
    """One pass of all sessions."""

    served: Pass
    wall_s: float
    cpu_s: float = 0.0
    """Of the engine's processes: of what other programs do meanwhile it holds least."""
    others: float = 0.0
    """Share of the machine's cores that other programs took meanwhile."""

    @property
    def first_s(self) -> float:
        return sum(served.ttft_s for served in self.served.values())

    @property
    def whole_s(self) -> float:
        return sum(served.total_s for served in self.served.values())

    @property
    def reused(self) -> float:
        n_prompt = sum(served.n_prompt for served in self.served.values())
        return sum(served.n_reused for served in self.served.values()) / max(n_prompt, 1)

    def same_answers(self, other: Played) -> float:
        """The share of answers that are the same, token by token."""
        same = sum(served.tokens == other.served[key].tokens for key, served in self.served.items())
        return same / max(len(self.served), 1)

    @property
    def failures(self) -> list[str]:
        return [f"{name} turn {n}: {served.failure}" for (name, n), served in self.served.items() if not served.ok]


Rounds = list[dict[Arm, Played]]


@dataclass(frozen=True)
class _Spent:
    """Seconds of the clock, and of all cores: those of this program's children (the engines), its own, everybody's."""

    wall_s: float
    engine_s: float
    own_s: float
    all_s: float

    @classmethod
    def now(cls) -> _Spent:
        me, machine = psutil.Process(), psutil.cpu_times()
        engine_s = sum(_cpu_s(child) for child in me.children(recursive=True))
        return cls(time.monotonic(), engine_s, _cpu_s(me), sum(machine) - machine.idle - machine.iowait)

    def __sub__(self, began: _Spent) -> _Spent:
        return _Spent(
            self.wall_s - began.wall_s,
            self.engine_s - began.engine_s,
            self.own_s - began.own_s,
            self.all_s - began.all_s,
        )

    def share_of_others(self) -> float:
        n_cores = psutil.cpu_count() or 1
        return max(self.all_s - self.engine_s - self.own_s, 0.0) / max(self.wall_s * n_cores, 1e-9)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def measure(
    config: SupervisorConfig, features: tuple[str, str], parts: Parts, sessions: Sequence[Prepared], plan: Plan,
    n_rounds: int, report: Callable[[int, Arm, Played], None],
) -> Rounds:  # fmt: skip
    """Every arm on a fresh engine. Raises StartError, or RequestError if not even the warm-up is served."""
    rounds: Rounds = []
    for turn in range(n_rounds):
        found: dict[Arm, Played] = {}
        for chosen in in_turns(ARMS, turn):
            configured = arm(config, dict(zip(features, chosen, strict=True)), parts)
            async with fresh_target(configured, timeout_s=plan.timeout_s) as target:
                began = _Spent.now()
                served = await play(
                    target, sessions, max_tokens=plan.max_tokens, concurrency=plan.n_agents, think=plan.pace
                )
                spent = _Spent.now() - began
                found[chosen] = Played(served, spent.wall_s, spent.engine_s, spent.share_of_others())
            report(turn, chosen, found[chosen])
        rounds.append(found)
    return rounds


@dataclass(frozen=True)
class ArmRow:
    """How many times faster than with neither; over the rounds."""

    name: str
    first: Ratio
    whole: Ratio
    wall: Ratio
    cpu: Ratio
    reused: float
    same: float


def arm_rows(features: tuple[str, str], rounds: Rounds) -> list[ArmRow]:
    names = {(False, False): "neither", (True, False): f"{features[0]} alone", (False, True): f"{features[1]} alone",
             (True, True): "both"}  # fmt: skip
    rows = []
    for chosen in ARMS:
        first, whole, wall, cpu = (Ratio.of(_faster(rounds, measure_of, chosen)) for measure_of in _MEASURES.values())
        same = min(found[chosen].same_answers(found[ARMS[0]]) for found in rounds)
        rows.append(ArmRow(names[chosen], first, whole, wall, cpu, rounds[-1][chosen].reused, same))
    return rows


def together(rounds: Rounds) -> dict[str, Ratio]:
    """Both over the product of each alone, by measure: above 1 they help each other, below they want the same."""
    return {
        name: Ratio.of(
            [
                both / max(one * other, 1e-9)
                for one, other, both in zip(*(_faster(rounds, measure_of, chosen) for chosen in ARMS[1:]), strict=True)
            ]
        )
        for name, measure_of in _MEASURES.items()
    }


_MEASURES: Mapping[str, Callable[[Played], float]] = {
    "first": lambda played: played.first_s,
    "whole": lambda played: played.whole_s,
    "wall": lambda played: played.wall_s,
    "cpu": lambda played: played.cpu_s,
}


def most_of_others(rounds: Rounds) -> float:
    """In the worst pass."""
    return max(played.others for found in rounds for played in found.values())


def _faster(rounds: Rounds, measure_of: Callable[[Played], float], chosen: Arm) -> list[float]:
    return [measure_of(found[ARMS[0]]) / max(measure_of(found[chosen]), 1e-9) for found in rounds]
