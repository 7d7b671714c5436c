"""Asks the sides of an evaluation its questions in sight, and says how long that will take. Knows no flags."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from luce.supervisor.cli.entry import say
from luce.supervisor.cli.evaluation.sides import ServerSide
from luce.supervisor.cli.progress import progress
from luce.supervisor.cli.time_left import TimeLeft, in_words
from luce.supervisor.evaluating.question import Question, Scale
from luce.supervisor.evaluating.results import Results
from luce.supervisor.evaluating.run import ask_all
from luce.supervisor.evaluating.suites import Suite

_CHARS_PER_TOKEN = 4.0  # of prompts without a length
_ANSWER_SHARE = 0.5  # of the tokens that an answer may have: what it is expected to have


def ask_within(
    results: Results, sides: Sequence[ServerSide], suite: Suite, n_at_once: int, minutes: float | None
) -> None:
    """Fills `results`. `minutes`: after which somebody ends it; tasks take turns then, so that each gets its share.
    None: as long as it takes. Raises ServerError."""
    groups = _questions(results, sides, suite)
    questions = [question for group in groups for question in group] if minutes is None else in_turns(groups)
    results.n_questions = len(questions)
    left = TimeLeft(_expected(questions, sides))
    advice = ""
    if minutes is not None and left.left_s > 60 * minutes:
        advice = f"; --minutes {minutes:g} ends it before all is asked"
    say(f"luce eval: about {in_words(left.left_s)} for {len(questions):,} questions{advice}")
    began_s = time.monotonic()
    with progress("asking", len(questions)) as advance:
        for asked in ask_all(sides, questions, n_at_once):
            results.asked.append(asked)
            left.end_step(time.monotonic() - began_s)
            began_s = time.monotonic()
            question = asked.question
            marks = ", ".join(f"{one.side} {next(iter(one.scores.values())):.0%}" for one in asked.outcomes)
            more = f", about {in_words(left.left_s)} left" if left.left_s > 0 else ""
            advance(f"{question.task} {question.name}: {marks or 'left out'}{more}")


def in_turns(groups: Sequence[Sequence[Question]]) -> list[Question]:
    """Of each group the same share, wherever it is ended."""
    placed = [((i + 0.5) / len(group), question) for group in groups for i, question in enumerate(group)]
    return [question for _, question in sorted(placed, key=lambda one: one[0])]


def _questions(results: Results, sides: Sequence[ServerSide], suite: Suite) -> list[list[Question]]:
    """Of each task."""
    counted: dict[str, float] = {"": 1.0}  # by the first side: all get the same prompts
    groups = []
    for task in results.tasks:
        if task.sample not in counted:
            counted[task.sample] = sides[0].chars_per_token(task.sample)
        seed, chars_per_token = results.settings["seed"], counted[task.sample]
        groups.append(list(task.make(Scale(suite.lengths, suite.n_samples, suite.n_calls, seed, chars_per_token))))
    return groups


def _expected(questions: Sequence[Question], sides: Sequence[ServerSide]) -> list[float]:
    """Seconds of each question."""
    paces = [side.pace() for side in sides]
    expected = []
    for question in questions:
        n_prompt = question.length or _n_tokens(question)
        n_answer = _ANSWER_SHARE * question.max_tokens
        expected.append(sum(pace.read_s * n_prompt + pace.write_s * n_answer for pace in paces))
    return expected


def _n_tokens(question: Question) -> float:
    return len(json.dumps([*question.messages, *question.tools])) / _CHARS_PER_TOKEN
