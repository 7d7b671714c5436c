"""Which engine takes a request: the one that holds the longest prefix of it, then the one that served its session
last (its older texts may be in that engine's host memory), then the least loaded. Where the one that holds it has no
lane free, what is cheapest: to wait for it, to move the text's memory to another one, or to read it there. Pure.

Also remembers which engine has served a session last. It must not know what an engine is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

E = TypeVar("E")

_MAX_SESSIONS = 4096


@dataclass(frozen=True, slots=True)
class Candidate(Generic[E]):
    """An engine that could start the request now."""

    engine: E
    n_running: int
    n_lanes: int
    n_held: int  # tokens of the request's prefix that it has
    is_home: bool = False  # it has served the request's session


def choose(candidates: Sequence[Candidate[E]]) -> E | None:
    """The engine for a request; the first one among equals."""
    if not candidates:
        return None
    return max(candidates, key=lambda c: (c.n_held, c.is_home, -c.n_running / c.n_lanes)).engine


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
