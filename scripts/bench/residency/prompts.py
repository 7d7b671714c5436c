"""Prompts that ask for a needle: a code that a long text names once, among sentences or Python, among other codes, or
five turns ago. They are as long as asked for, and say where the needle is. It must not know an engine or a clock.

The sentences, the owners and the wording are what the packaged model was trained on: with its whole text in sight it
finds every needle, so what is missing is what was out of sight. The Python is this repository's own.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

from luce.supervisor.evaluating.tasks.haystack import FILLER, OWNERS
from luce.supervisor.text import TextModel

ROOT = Path(__file__).resolve().parents[3]

KINDS = {
    "filler": "one code among sentences",
    "code": "one code in a comment of Python",
    "four": "four codes among sentences, one of them asked for",
    "turns": "a code of the first turn, asked for in the sixth",
}
N_TURNS = 6
SHALLOWEST, DEEPEST = 0.1, 0.9
# What the fact, the question and the template need of a prompt's length, roughly.
N_AROUND = 48

Message = dict[str, str]


@dataclass(frozen=True)
class NeedlePrompt:
    """Ready for an engine; the answer is right if it holds `expected`."""

    kind: str
    depth: float
    """Of the text (of its first turn: "turns") that stands before the needle, 0 to 1."""
    ids: tuple[int, ...]
    needle_at: int
    """The token that the needle begins at, give or take one."""
    expected: str

    @property
    def n_behind(self) -> int:
        """Tokens from the needle to the end."""
        return len(self.ids) - self.needle_at


def depths(n: int) -> list[float]:
    """n depths from the shallowest to the deepest, evenly; one: the middle."""
    if n == 1:
        return [(SHALLOWEST + DEEPEST) / 2]
    return [SHALLOWEST + (DEEPEST - SHALLOWEST) * i / (n - 1) for i in range(n)]


def needle_prompt(model: TextModel, kind: str, n_tokens: int, depth: float, seed: int) -> NeedlePrompt:
    """About n_tokens long. Each seed has its own text, owner and code."""
    rng = random.Random(f"{kind} {n_tokens} {depth:.4f} {seed}")
    owners = rng.sample(OWNERS, 4 if kind == "four" else 1)
    codes = [str(rng.randrange(10000, 100000)) for _ in owners]
    facts = [f"The access code of the {owner} is {code}." for owner, code in zip(owners, codes, strict=True)]
    question = f"What is the access code of the {owners[0]}?"
    if kind == "turns":
        messages = _turns(model, n_tokens, depth, facts[0], question, rng)
    elif kind == "code":
        messages = [{"role": "user", "content": f"{python_with(model, n_tokens, depth, facts[0], rng)}\n\n{question}"}]
    else:
        # The fact that is asked for goes in last: the others are put elsewhere and must not move it.
        text = sentences(model, n_tokens - len(facts) * N_AROUND, rng)
        for fact in facts[1:]:
            text.insert(rng.randrange(len(text) + 1), fact)
        text.insert(round(len(text) * depth), facts[0])
        messages = [{"role": "user", "content": f"{' '.join(text)}\n\n{question}"}]
    return _rendered(model, kind, depth, messages, facts[0], codes[0])


def _rendered(
    model: TextModel, kind: str, depth: float, messages: Sequence[Message], fact: str, code: str
) -> NeedlePrompt:
    chat = model.render(messages)
    ids = chat.tokens
    chat.close()
    before, found, _ = model.detokenize(ids, unparse_special=True).decode().partition(fact)
    assert found, "the template drops what a message says"
    needle_at = len(model.tokenize(before, parse_special=True))
    return NeedlePrompt(kind, depth, tuple(ids), needle_at, code)


def sentences(model: TextModel, n_tokens: int, rng: random.Random) -> list[str]:
    """Sentences of about n_tokens together."""
    lengths = {sentence: len(model.tokenize(f" {sentence}")) for sentence in FILLER}
    text = []
    while n_tokens > 0:
        text.append(rng.choice(FILLER))
        n_tokens -= lengths[text[-1]]
    return text


def python_text(model: TextModel, n_tokens: int, seed: int) -> str:
    """Neighbouring lines of this repository, n_tokens or a few more."""
    return "\n".join(_python_from(model, n_tokens, random.Random(f"python {seed}")))


def python_with(model: TextModel, n_tokens: int, depth: float, fact: str, rng: random.Random) -> str:
    """The fact in a comment as deep as the line that it stands before, by tokens: lines differ in length."""
    lines = _python_from(model, n_tokens - N_AROUND, rng)
    begins = list(accumulate((len(model.tokenize(line + "\n")) for line in lines), initial=0))
    place = bisect_left(begins, depth * begins[-1])
    below = lines[place] if place < len(lines) else ""
    lines.insert(place, f"{below[: len(below) - len(below.lstrip())]}# {fact}")
    return "```python\n" + "\n".join(lines) + "\n```"


def _python_from(model: TextModel, n_tokens: int, rng: random.Random) -> list[str]:
    lines = _python_lines()
    at = rng.randrange(len(lines))
    chosen: list[str] = []
    while n_tokens > 0:
        chosen.append(lines[(at + len(chosen)) % len(lines)])
        n_tokens -= len(model.tokenize(chosen[-1] + "\n"))
    return chosen


@cache
def _python_lines() -> tuple[str, ...]:
    files = sorted((ROOT / "supervisor").glob("*.py")) + sorted((ROOT / "protocol").glob("*.py"))
    return tuple(line for file in files for line in file.read_text(encoding="utf-8").splitlines())


def _turns(
    model: TextModel, n_tokens: int, depth: float, fact: str, question: str, rng: random.Random
) -> list[Message]:
    """Five turns that are read, one of them with the fact; the sixth asks."""
    messages: list[Message] = []
    for turn in range(N_TURNS - 1):
        text = sentences(model, n_tokens // (N_TURNS - 1) - N_AROUND // 2, rng)
        if turn == 0:
            text.insert(round(len(text) * depth), fact)
        messages += [{"role": "user", "content": " ".join(text)}, {"role": "assistant", "content": "I have read it."}]
    return [*messages, {"role": "user", "content": question}]
