"""What a device finds among the experts that it holds: orders of experts, and the hits of each share of them. Pure.

All experts count as equally large. An expert is (index of its layer, its id).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from luce.supervisor.cli.experts.profile_file import ExpertProfile, Phase

Expert = tuple[int, int]
Uses = Sequence[Sequence[float]]  # [index of the layer][expert]

PERCENTS = tuple(range(10, 100, 10))
"""Of all experts, that tables show."""

_PREFILL_WEIGHT = 0.1  # native/experts/expert_usage.cpp: a prompt's use counts as so much of an answer's


@dataclass(frozen=True, slots=True)
class Spread:
    """How the uses of a layer are spread. None: it was not used."""

    uses: float
    effective: float | None
    """As many experts, used alike, would have the same entropy."""
    most_used_share: float | None


def spread_of(counts: Sequence[float]) -> Spread:
    total = math.fsum(counts)
    if total == 0:
        return Spread(0.0, None, None)
    shares = [count / total for count in counts]
    entropy = -sum(share * math.log(share) for share in shares if share > 0)
    return Spread(total, math.exp(entropy), max(shares))


def resident_order(profile: ExpertProfile) -> list[Expert]:
    """Who gets the device's memory first, as native/experts/expert_layout.cpp gives it: the most used ones by their
    share of their layer's uses, whatever the layer; where nothing of a layer is known all layers get the same share."""
    candidates: list[tuple[float, Expert]] = []
    for index, use in enumerate(profile.layers):
        values = [decode + _PREFILL_WEIGHT * prefill for decode, prefill in zip(use.decode, use.prefill, strict=True)]
        total, n = sum(values), len(values)
        ids = sorted(range(n), key=lambda expert: -values[expert])
        for rank, expert in enumerate(ids):
            candidates.append((values[expert] / total if total > 0 else (n - rank) / n**2, (index, expert)))
    candidates.sort(key=lambda candidate: -candidate[0])
    return [expert for _, expert in candidates]


def best_order(uses: Uses) -> list[Expert]:
    """What nobody knows before: by the very uses that are to be hit."""
    experts = [(index, expert) for index, counts in enumerate(uses) for expert in range(len(counts))]
    return sorted(experts, key=lambda expert: -uses[expert[0]][expert[1]])


def hits(order: Sequence[Expert], uses: Uses, percents: Iterable[int]) -> list[float] | None:
    """Of all uses the share whose experts are among the first ones of `order`: for each percentage of all experts.
    None: nothing was used."""
    sums = list(accumulate((uses[index][expert] for index, expert in order), initial=0.0))
    return [sums[n_held(percent, len(order))] / sums[-1] for percent in percents] if sums[-1] > 0 else None


def n_held(percent: int, n_experts: int) -> int:
    return percent * n_experts // 100


@dataclass(frozen=True, slots=True)
class Curves:
    """Hits of answers, or of prompts, at `PERCENTS` or whatever was asked for. None: nothing was used."""

    profile: list[float] | None
    best: list[float] | None


def compare(profile: ExpertProfile, held_back: ExpertProfile, phase: Phase, percents: Sequence[int]) -> Curves:
    """The profile's order against the best one, on other uses of the same model."""
    uses = held_back.uses(phase)
    return Curves(hits(resident_order(profile), uses, percents), hits(best_order(uses), uses, percents))


def chance(n_experts: int, percents: Iterable[int]) -> list[float]:
    """What any choice of experts hits on average: their share."""
    return [n_held(percent, n_experts) / n_experts for percent in percents]
