"""What an evaluation found, in rows: shares with their intervals, differences of two sides, answers that are the same,
and what is below what was wanted. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from luce.supervisor.evaluating.question import Task
from luce.supervisor.evaluating.run import Asked
from luce.supervisor.evaluating.statistics import Interval, difference, share


@dataclass(frozen=True, slots=True)
class ScoreRow:
    metric: str
    length: int | None
    """None: over all lengths."""
    side: str
    n: int
    score: Interval
    n_prompt: int
    """Mean, in tokens."""


@dataclass(frozen=True, slots=True)
class DifferenceRow:
    """The first side less the second."""

    metric: str
    n: int
    difference: Interval
    n_better: int
    n_worse: int


@dataclass(frozen=True, slots=True)
class SameRow:
    """How many answers are the same on both sides, word by word."""

    task: str
    n: int
    share: Interval


@dataclass(frozen=True, slots=True)
class Shortfall:
    metric: str
    wanted: float
    found: float | None
    """None: nothing was measured."""

    def __str__(self) -> str:
        found = "was not measured" if self.found is None else f"is {self.found:.1%}"
        return f"{self.metric} {found}, wanted at least {self.wanted:.1%}"


@dataclass
class Results:
    """Everything of one run. The first side is the one that is asked about."""

    sides: dict[str, str]  # name -> address, or what it is
    tasks: Sequence[Task]
    settings: dict[str, Any]
    at_least: Mapping[str, float]
    asked: list[Asked] = field(default_factory=list)
    n_questions: int = 0
    """That were to be asked."""
    ended: str = ""
    """Why it ended before all were; empty: it did not."""

    def score_rows(self) -> list[ScoreRow]:
        """Over all lengths, then by length where there are several."""
        rows = []
        for metric, asked in self._by_metric():
            lengths = sorted({a.question.length for a in asked if a.question.length is not None})
            groups: list[tuple[int | None, list[Asked]]] = [(None, asked)]
            if len(lengths) > 1:
                groups += [(n, [a for a in asked if a.question.length == n]) for n in lengths]
            rows += [self._row(metric, length, at, group) for length, group in groups for at in range(len(self.sides))]
        return rows

    def difference_rows(self) -> list[DifferenceRow]:
        rows = []
        for metric, asked in self._by_metric() if len(self.sides) > 1 else ():
            first, second = ([a.outcomes[at].scores[metric] for a in asked] for at in (0, 1))
            pairs = list(zip(first, second, strict=True))
            better, worse = (sum(a > b for a, b in pairs), sum(a < b for a, b in pairs))
            rows.append(DifferenceRow(metric, len(pairs), difference(first, second), better, worse))
        return rows

    def same_rows(self) -> list[SameRow]:
        rows = []
        for task in self.tasks if len(self.sides) > 1 else ():
            replies = [[one.answered.reply for one in a.outcomes] for a in self._answered(task)]
            if replies:
                is_same = [float(first == second) for first, second in replies]
                rows.append(SameRow(task.name, len(replies), share(is_same)))
        return rows

    def shortfalls(self) -> list[Shortfall]:
        """Of the first side. What was not measured is one, unless its task was not chosen or not come to."""
        first = next(iter(self.sides))
        found = {row.metric: row.score.value for row in self.score_rows() if row.side == first and row.length is None}
        found |= {f"{row.task}-same": row.share.value for row in self.same_rows()}
        wanted = self.at_least.items()
        return [
            Shortfall(metric, least, found.get(metric))
            for metric, least in wanted
            if (found[metric] < least if metric in found else not self.ended)
        ]

    def refusals(self) -> list[str]:
        """One line for each task and length that a side had no room for."""
        counts: dict[tuple[str, int | None], list[str]] = {}
        for asked in self.asked:
            if not asked.outcomes:
                counts.setdefault((asked.question.task, asked.question.length), []).append(asked.refusal)
        return [
            f"{task}{'' if length is None else f' at {length:,} tokens'}: {len(all_)} left out: {all_[0]}"
            for (task, length), all_ in counts.items()
        ]

    def _answered(self, task: Task) -> list[Asked]:
        return [asked for asked in self.asked if asked.question.task == task.name and asked.outcomes]

    def _by_metric(self) -> Iterator[tuple[str, list[Asked]]]:
        """A metric that applies to none of the answers is left out."""
        for task in self.tasks:
            answered = self._answered(task)
            for metric in task.metrics:
                with_it = [a for a in answered if all(metric in one.scores for one in a.outcomes)]
                if with_it:
                    yield metric, with_it

    def _row(self, metric: str, length: int | None, at: int, asked: Sequence[Asked]) -> ScoreRow:
        outcomes = [a.outcomes[at] for a in asked]
        score = share([one.scores[metric] for one in outcomes])
        n_prompt = round(sum(one.answered.n_prompt for one in outcomes) / len(outcomes))
        return ScoreRow(metric, length, list(self.sides)[at], len(outcomes), score, n_prompt)
