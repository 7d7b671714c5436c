"""A question, what comes back, and how the two are compared: the plain values of an evaluation. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
"""As OpenAI's chat completions have it."""


@dataclass(frozen=True, slots=True)
class Call:
    """Of a tool. `arguments` are as the model wrote them: they may be no JSON."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model said, without its reasoning."""

    text: str = ""
    calls: tuple[Call, ...] = ()


Scores = Mapping[str, float]
"""By metric, 0 to 1. A metric that does not apply to an answer is left out."""


@dataclass(frozen=True)
class Question:
    task: str
    name: str
    """Which one of the task's."""
    messages: Sequence[Message]
    max_tokens: int
    judge: Callable[[Reply], Scores]
    right: Reply
    """An answer with full marks."""
    tools: Sequence[Message] = ()
    length: int | None = None
    """About how many tokens were wanted, where the task has lengths."""


@dataclass(frozen=True)
class Scale:
    """How much a task asks."""

    lengths: tuple[int, ...]
    """Of prompts, in tokens."""
    n_samples: int
    """At each length."""
    n_calls: int
    """Of tools: short prompts, so there may be more of them."""
    seed: int
    chars_per_token: float
    """Of the task's texts."""

    def chars(self, n_tokens: int) -> int:
        return round(n_tokens * self.chars_per_token)

    def rng(self, *names: object) -> random.Random:
        """The same numbers for the same names, whatever else is asked."""
        return random.Random(" ".join(map(str, (self.seed, *names))))  # noqa: S311


@dataclass(frozen=True)
class Task:
    name: str
    family: str
    what: str
    """In one line."""
    metrics: tuple[str, ...]
    """That its judges give: the first one is what the task is for."""
    make: Callable[[Scale], Iterable[Question]]
    sample: str = ""
    """Some of its long texts, to count how many characters a token of them has; empty: its prompts have no length."""


def share_found(expected: Iterable[str], found: Iterable[str]) -> float:
    """How much of what was asked for an answer names. It is divided by all that the answer names where that is more:
    naming everything earns little."""
    wanted, named = set(expected), set(found)
    return len(wanted & named) / max(len(wanted), len(named))
