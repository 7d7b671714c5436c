"""Asks one or two sides the same questions, in turns, and judges what they answer. Knows no server: a side is whoever
answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, islice
from typing import Protocol

from luce.supervisor.evaluating.question import Question, Reply, Scores


class NoRoomError(Exception):
    """The side refuses a question, for its length say; others it may answer."""


@dataclass(frozen=True, slots=True)
class Answered:
    reply: Reply
    n_prompt: int
    """Tokens, by the side's own count; 0: it counts none."""
    n_answer: int


class Side(Protocol):
    @property
    def name(self) -> str: ...

    def answer(self, question: Question) -> Answered:
        """Raises NoRoomError, or what ends the evaluation."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one side made of a question."""

    side: str
    answered: Answered
    scores: Scores


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with what each side made of it, the first side first; none: a side had no room for it."""

    question: Question
    outcomes: Sequence[Outcome]
    refusal: str = ""


def ask_all(sides: Sequence[Side], questions: Iterable[Question], n_at_once: int) -> Iterator[Asked]:
    """In the order of the questions. Another side begins each time, so that what a machine does meanwhile falls on all.
    One at a time stays in this thread, where Ctrl-C ends the wait."""
    numbered = zip(count(), questions, strict=False)
    if n_at_once == 1:
        for turn, question in numbered:
            yield _ask(sides, question, turn)
        return
    with ThreadPoolExecutor(n_at_once) as pool:
        running: deque[Future[Asked]] = deque()
        try:
            for turn, question in numbered:
                running.append(pool.submit(_ask, sides, question, turn))
                if len(running) >= 2 * n_at_once:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _ask(sides: Sequence[Side], question: Question, turn: int) -> Asked:
    found: dict[str, Outcome] = {}
    at = turn % len(sides)
    for side in (*islice(sides, at, None), *islice(sides, at)):
        try:
            answered = side.answer(question)
        except NoRoomError as error:
            return Asked(question, (), f"{side.name}: {error}")
        found[side.name] = Outcome(side.name, answered, question.judge(answered.reply))
    return Asked(question, [found[side.name] for side in sides])
