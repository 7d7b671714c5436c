"""What a model still finds in a text that its pool cannot hold: each prompt goes to luced with the whole text in
sight, to luced with --kv-offload by what is asked for ("query"), by what a small model asks for ("draft", where there
is one), and to luced with the newest pages only ("lru"). Counts, no times. It must not know how a prompt is made or
a table looks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from luce.protocol import GenerateOk
from luce.supervisor.text import TextModel
from scripts.bench.residency.prompts import KINDS, NeedlePrompt, depths, needle_prompt
from scripts.bench.residency.sides import DEADLINE_S, PAGE, EngineSettings, RefusedError, whole_pages
from tests.daemon_driver import DaemonDriver, gen_line

N_SINKS, N_RECENT = 1, 4  # pages that a lane sees whatever they hold
# Shorter prompts would lie in the pages that are always there.
LEAST_TOKENS = {25: 2048, 12: 4096, 6: 7168}
N_ANSWER = 24  # tokens: the code and a sentence around it


@dataclass(frozen=True)
class Residency:
    """A share of the text, in percent, that may be chosen freely, and the length of that text."""

    percent: int
    n_tokens: int

    @classmethod
    def of(cls, percent: int, n_tokens: int | None = None) -> Residency:
        """Without a length the shortest that says something."""
        return cls(percent, n_tokens if n_tokens is not None else least_tokens(percent))

    def n_pool(self, n_ubatch: int) -> int:
        """Cells: what always has to be there, a slice, and the share; whole pages."""
        n_cells = (N_SINKS + N_RECENT) * PAGE + n_ubatch + self.percent * self.n_tokens / 100
        return whole_pages(n_cells)

    @property
    def n_ctx(self) -> int:
        return whole_pages(self.n_tokens * 1.1 + 4 * PAGE)


@dataclass(frozen=True)
class RecallSample:
    """One prompt and what each side made of it."""

    kind: str
    percent: int
    n_pool: int
    n_prompt: int
    n_behind: int
    depth: float
    expected: str
    answers: dict[str, str]
    """By side."""

    def is_right(self, side: str) -> bool:
        return self.expected in self.answers[side]

    @property
    def is_outside(self) -> bool:
        """Whether the pool's newest tokens end behind the needle, and its first page before it."""
        return self.n_behind > self.n_pool and self.n_prompt - self.n_behind >= PAGE * N_SINKS


def least_tokens(percent: int) -> int:
    """The length from which a residency says something; of one in between, that of the next smaller."""
    smaller = [n for known, n in LEAST_TOKENS.items() if known <= percent]
    return min(smaller) if smaller else max(LEAST_TOKENS.values())


def measure_recall(
    settings: EngineSettings,
    residency: Residency,
    kinds: Sequence[str] = tuple(KINDS),
    n_needles: int = 40,
    seed: int = 0,
    report: Callable[[RecallSample], None] = lambda _: None,
) -> list[RecallSample]:
    """n_needles of each kind, kinds and depths in turns, so that a run that is ended early has some of all."""
    samples = []
    n_pool = residency.n_pool(settings.n_ubatch)
    with TextModel(settings.model) as model, settings.sides(residency.n_ctx, n_pool) as daemons:
        for i, prompt in enumerate(_prompts(model, residency.n_tokens, kinds, n_needles, seed)):
            answers = {}
            sides = [*daemons]
            first = i % len(sides)
            for side in sides[first:] + sides[:first]:
                tokens = ask(daemons[side], prompt)
                answers[side] = model.detokenize(tokens).decode(errors="replace")
            sample = RecallSample(
                prompt.kind, residency.percent, n_pool, len(prompt.ids), prompt.n_behind, prompt.depth,
                prompt.expected, answers,
            )  # fmt: skip
            samples.append(sample)
            report(sample)
    return samples


def _prompts(
    model: TextModel, n_tokens: int, kinds: Sequence[str], n_needles: int, seed: int
) -> Iterator[NeedlePrompt]:
    in_any_order = depths(n_needles)
    random.Random(seed).shuffle(in_any_order)
    for i, depth in enumerate(in_any_order):
        for kind in kinds:
            yield needle_prompt(model, kind, n_tokens, depth, seed * n_needles + i)


def ask(daemon: DaemonDriver, prompt: NeedlePrompt) -> list[int]:
    """The most likely answer, the whole prompt read anew. Raises RefusedError."""
    daemon.send(gen_line(1, N_ANSWER, prompt.ids, "reuse=0"))
    tokens = daemon.tokens_until_end(DEADLINE_S)
    reply = daemon.next_reply()
    if not isinstance(reply, GenerateOk):
        raise RefusedError(reply)
    return tokens
