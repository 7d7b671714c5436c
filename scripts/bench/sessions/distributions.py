"""What sessions are like: how long prompts and answers are, how much of a prompt was there before, how long people and
tools take. Counts and the transcripts' own clock; knows no engine.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from luce.supervisor.evaluating.transcripts import Turn
from scripts.bench.replay.prompts import Prepared


@dataclass
class Distributions:
    """Every value of each kind."""

    n_sessions: int = 0
    prompt: list[int] = field(default_factory=list)
    new: list[int] = field(default_factory=list)
    """Tokens behind what the same conversation had before."""
    answer: list[int] = field(default_factory=list)
    of_conversation: list[float] = field(default_factory=list)
    """Share of a prompt that the request before in its conversation had too."""
    of_any: list[float] = field(default_factory=list)
    """The same of any request before, of whatever session: what a cache without an end would find."""
    person_s: list[float] = field(default_factory=list)
    """From an answer to what a person wrote next."""
    tools_s: list[float] = field(default_factory=list)
    """From an answer to the last of its tools' results."""
    tool_s: dict[str, list[float]] = field(default_factory=dict)
    """Of each tool: from the answer that called it to its result."""

    @property
    def n_requests(self) -> int:
        return len(self.prompt)


@dataclass(frozen=True)
class Quantiles:
    n: int
    p10: float
    p50: float
    p90: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Quantiles | None:
        if not values:
            return None
        p10, p50, p90, most = (float(q) for q in np.quantile(values, (0.1, 0.5, 0.9, 1.0)))
        return cls(len(values), p10, p50, p90, most)


def distributions_of(sessions: Sequence[Prepared]) -> Distributions:
    """Sessions one after the other, as they are given."""
    found = Distributions(len(sessions))
    known = _KnownPrompts()
    for prepared in sessions:
        last: dict[str, array[int]] = {}
        for prompt in prepared.prompts:
            turn = prepared.session.turns[prompt.number - 1]
            n = len(prompt.ids)
            found.prompt.append(n)
            found.answer.append(prompt.n_answer)
            if turn.conversation in last:
                n_before = n_common(last[turn.conversation], prompt.ids)
                found.of_conversation.append(n_before / n)
                found.new.append(n - n_before)
            found.of_any.append(known.n_known(prompt.ids) / n)
            known.add(prompt.ids)
            last[turn.conversation] = prompt.ids
            if turn.think_s is not None:
                (found.tools_s if is_behind_tools(turn) else found.person_s).append(turn.think_s)
        for name, seconds in _tool_latencies(prepared.session.turns):
            found.tool_s.setdefault(name, []).append(seconds)
    return found


def n_common(one: array[int], other: array[int]) -> int:
    """How many first ids are the same."""
    least = min(len(one), len(other))
    differ = np.flatnonzero(np.asarray(one[:least]) != np.asarray(other[:least]))
    return int(differ[0]) if len(differ) else least


class _KnownPrompts:
    """In order, so that the nearest neighbours are the ones with the longest common beginning."""

    def __init__(self) -> None:
        self._prompts: list[array[int]] = []

    def add(self, ids: array[int]) -> None:
        insort(self._prompts, ids)

    def n_known(self, ids: array[int]) -> int:
        at = bisect_left(self._prompts, ids)
        return max((n_common(near, ids) for near in self._prompts[max(at - 1, 0) : at + 1]), default=0)


def is_behind_tools(turn: Turn) -> bool:
    """Whether nothing but tools stood between the last answer and this request."""
    after: list[str] = []
    for item in reversed(turn.sent):
        if item.role == "assistant":
            break
        after.append(item.role)
    return bool(after) and set(after) == {"tool"}


def _tool_latencies(turns: Sequence[Turn]) -> Iterator[tuple[str, float]]:
    """Each call once, though it stands in every later request."""
    told: set[tuple[str, str]] = set()
    for turn in turns:
        results = {item.call_id: item.time_s for item in turn.sent if item.role == "tool"}
        for item in turn.sent:
            for call in item.calls:
                ended_s = results.get(call.id)
                if ended_s is None or item.time_s is None or (turn.conversation, call.id) in told:
                    continue
                told.add((turn.conversation, call.id))
                yield call.name, max(ended_s - item.time_s, 0.0)
