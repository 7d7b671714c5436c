"""Which engine, or which replica, takes a request. Pure.

Among the engines of one server: the one that holds the longest prefix of it, then the one that served its session last
(its older texts may be in that engine's host memory), then the least loaded. Where the one that holds it has no lane
free, what is cheapest: to wait for it, to move the text's memory to another one, or to read it there.

Among replicas: the cheapest. The price is seconds of waiting and seconds of reading what is missing, the latter once
more for each request that is open there, since it holds up them too (docs/benchmarks/routing.md).

Also remembers which engine has served a session last. It must not know what an engine or a replica is.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

E = TypeVar("E")

_MAX_SESSIONS = 4096
_DEFAULT_READ_S = 0.001
"""A token, as long as no replica has measured it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Generic[E]):
    """An engine that could start the request now, or a replica that could take it."""

    taker: E
    n_held: int
    """Tokens of the prompt that it need not read."""
    n_open: int
    """Requests that it has."""
    n_lanes: int
    is_home: bool = False
    """It has served the request's session last."""
    n_unread: int = 0
    """Tokens of open requests that it has still to read."""
    read_s: float | None = None
    """What reading a token takes; None: nobody has measured it."""
    answer_s: float = 1.0
    """How long a request has a lane."""


def choose(candidates: Sequence[Candidate[E]]) -> E | None:
    """The engine for a request; the first one among equals."""
    if not candidates:
        return None
    return max(candidates, key=lambda c: (c.n_held, c.is_home, -c.n_open / c.n_lanes)).taker


def price_s(candidate: Candidate[E], n_prompt: int, default_read_s: float) -> float:
    read_s = default_read_s if candidate.read_s is None else candidate.read_s
    missing_s = max(n_prompt - candidate.n_held, 0) * read_s
    n_ahead = max(candidate.n_open + 1 - candidate.n_lanes, 0)
    wait_s = candidate.n_unread * read_s + n_ahead * candidate.answer_s / candidate.n_lanes
    return wait_s + missing_s * (1 + candidate.n_open)


def by_price(candidates: Sequence[Candidate[E]], n_prompt: int) -> list[E]:
    """The cheapest first; among equals the session's home, then the one with the least to do."""
    measured = [candidate.read_s for candidate in candidates if candidate.read_s is not None]
    default_read_s = sum(measured) / len(measured) if measured else _DEFAULT_READ_S
    ranked = sorted(
        candidates, key=lambda c: (price_s(c, n_prompt, default_read_s), not c.is_home, c.n_open / c.n_lanes)
    )
    return [candidate.taker for candidate in ranked]


def by_two_choices(candidates: Sequence[Candidate[E]], draw: random.Random) -> list[E]:
    """Of two that are drawn, the one with less to do; the others behind them. What ours is measured against."""
    drawn = draw.sample(candidates, len(candidates))
    first = sorted(drawn[:2], key=lambda candidate: candidate.n_open)
    return [candidate.taker for candidate in [*first, *drawn[2:]]]


class Way(Enum):
    """How a request gets to its text, of which an engine without a free lane holds the most."""

    WAIT = "wait"
    MOVE = "move"
    READ = "read"


def cheapest(*, wait_s: float, move_s: float | None, read_s: float, waited_s: float) -> Way:
    """Nobody waits longer than the best of the others would have taken: however wrong the guess of the wait is, it
    costs twice as much at most. `move_s` None: the text cannot be moved."""
    other_s = read_s if move_s is None else min(move_s, read_s)
    if max(wait_s, waited_s) < other_s:
        return Way.WAIT
    return Way.MOVE if move_s is not None and move_s < read_s else Way.READ


class RecentSessions:
    """The sessions that have been served, each by the engine that served it last."""

    def __init__(self) -> None:
        self._homes: OrderedDict[str, object] = OrderedDict()

    def note(self, session: str, engine: object) -> None:
        if session == "":
            return
        self._homes[session] = engine
        self._homes.move_to_end(session)
        if len(self._homes) > _MAX_SESSIONS:
            self._homes.popitem(last=False)

    def is_home(self, session: str, engine: object) -> bool:
        return session != "" and self._homes.get(session) is engine
