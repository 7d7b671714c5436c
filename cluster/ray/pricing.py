"""What it costs to have a prompt read by each of several replicas, and which of them is to read it. Pure.

The price is seconds of waiting and seconds of reading what is missing, the latter once more for each request that is
open there, since it holds up them too (docs/benchmarks/routing.md).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

R = TypeVar("R")

DEFAULT_READ_S = 0.001
"""A token, as long as nobody has measured it."""


@dataclass(frozen=True, slots=True)
class Candidate(Generic[R]):
    replica: R
    n_known: int
    """Tokens of the prompt that it need not read."""
    n_open: int
    n_lanes: int
    n_unread: int
    """Tokens of open requests that it has still to read."""
    read_s: float | None
    """What reading a token takes; None: nobody has measured it."""
    answer_s: float
    """How long requests take."""
    is_home: bool = False
    """It has served the prompt's session last."""


def price_s(candidate: Candidate[R], n_prompt: int, default_read_s: float) -> float:
    read_s = default_read_s if candidate.read_s is None else candidate.read_s
    missing_s = max(n_prompt - candidate.n_known, 0) * read_s
    n_ahead = max(candidate.n_open + 1 - candidate.n_lanes, 0)
    wait_s = candidate.n_unread * read_s + n_ahead * candidate.answer_s / candidate.n_lanes
    return wait_s + missing_s * (1 + candidate.n_open)


def by_price(candidates: Sequence[Candidate[R]], n_prompt: int) -> list[R]:
    """The cheapest first; among equals the session's home, then the one with the least to do."""
    measured = [candidate.read_s for candidate in candidates if candidate.read_s is not None]
    default_read_s = sum(measured) / len(measured) if measured else DEFAULT_READ_S
    ranked = sorted(
        candidates,
        key=lambda candidate: (
            price_s(candidate, n_prompt, default_read_s),
            not candidate.is_home,
            candidate.n_open / candidate.n_lanes,
        ),
    )
    return [candidate.replica for candidate in ranked]


def by_two_choices(candidates: Sequence[Candidate[R]], draw: random.Random) -> list[R]:
    """Of two that are drawn, the one with less to do; the others behind them. What ours is measured against."""
    drawn = draw.sample(candidates, len(candidates))
    first = sorted(drawn[:2], key=lambda candidate: candidate.n_open)
    return [candidate.replica for candidate in [*first, *drawn[2:]]]
