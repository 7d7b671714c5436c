"""What a model still finds in a text that its pool cannot hold: each prompt goes to luced with the whole text in sight,
to luced with --kvflash by what is asked for ("query"), and to luced with the newest pages only ("lru"). Counts, no
times. It must not know how a prompt is made or a table looks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from luce.protocol import Err, GenerateOk
from luce.supervisor.text import TextModel
from scripts.bench.residency_prompts import KINDS, NeedlePrompt, depths, needle_prompt
from tests.daemon_driver import DaemonDriver, gen_line

PAGE = 64
N_SINKS, N_RECENT = 1, 4  # pages that a lane sees whatever they hold
FULL, QUERY, LRU = SIDES = ("full", "query", "lru")
# Shorter prompts would lie in the pages that are always there.
LEAST_TOKENS = {25: 2048, 12: 4096, 6: 7168}
ANSWER_DEADLINE_S = 3600.0


class RefusedError(RuntimeError):
    """luced does not want what it was asked; the text is its own."""


@dataclass(frozen=True)
class RecallSettings:
    luced: Path
    model: Path
    n_ubatch: int = 64
    n_threads: int = 1
    n_gpu_layers: int = 0
    cache_type: str = "q8_0"
    tau: int = 64
    n_answer: int = 24
    more: tuple[str, ...] = ()

    def arguments(self, n_ctx: int, side: str, n_pool: int) -> list[str]:
        """Of one luced: `n_pool` is what the bounded ones have."""
        pool = ["--kvflash", str(n_pool), "--kvflash-policy", side, "--kvflash-tau", str(self.tau)]
        return [
            "--lanes", "1", "--ctx", str(n_ctx), *(["--pool", str(n_ctx)] if side == FULL else pool),
            "--ubatch", str(self.n_ubatch), "--threads", str(self.n_threads), "--gpu-layers", str(self.n_gpu_layers),
            "--cache-type-k", self.cache_type, "--cache-type-v", self.cache_type, "--draft-max", "0", *self.more,
        ]  # fmt: skip


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

    def is_right(self, side: str) -> bool:
        return self.expected in self.answers[side]

    @property
    def is_outside(self) -> bool:
        """Whether the pool's newest tokens end behind the needle, and its first page before it."""
        return self.n_behind > self.n_pool and self.n_prompt - self.n_behind >= PAGE * N_SINKS


def whole_pages(n_cells: float) -> int:
    return -int(-n_cells // PAGE) * PAGE


def least_tokens(percent: int) -> int:
    """The length from which a residency says something; of one in between, that of the next smaller."""
    smaller = [n for known, n in LEAST_TOKENS.items() if known <= percent]
    return min(smaller) if smaller else max(LEAST_TOKENS.values())


def measure_recall(
    settings: RecallSettings,
    residency: Residency,
    kinds: Sequence[str] = tuple(KINDS),
    n_needles: int = 40,
    seed: int = 0,
    report: Callable[[RecallSample], None] = lambda _: None,
) -> list[RecallSample]:
    """n_needles of each kind, kinds and depths in turns, so that a run that is ended early has some of all."""
    samples = []
    n_pool = residency.n_pool(settings.n_ubatch)
    with ExitStack() as stack:
        model = stack.enter_context(TextModel(settings.model))
        daemons = {}
        for side in SIDES:
            arguments = settings.arguments(residency.n_ctx, side, n_pool)
            daemons[side] = stack.enter_context(DaemonDriver(settings.luced, settings.model, *arguments))
        for i, prompt in enumerate(_prompts(model, residency.n_tokens, kinds, n_needles, seed)):
            answers = {}
            for side in SIDES[i % 3 :] + SIDES[: i % 3]:
                tokens = ask(daemons[side], prompt, settings.n_answer)
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


def ask(daemon: DaemonDriver, prompt: NeedlePrompt, n_answer: int) -> list[int]:
    """The most likely answer, the whole prompt read anew. Raises RefusedError."""
    daemon.send(gen_line(1, n_answer, prompt.ids, "reuse=0"))
    tokens = daemon.tokens_until_end(ANSWER_DEADLINE_S)
    reply = daemon.next_reply()
    if isinstance(reply, Err):
        raise RefusedError(f"luced: {reply.code} {reply.text}")
    assert isinstance(reply, GenerateOk), reply
    return tokens
