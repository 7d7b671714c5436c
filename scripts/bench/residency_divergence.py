"""How far the next token's distribution moves when only a part of the text is in sight: the last stretch of a text of
Python or of a conversation, read step by step by luced with all of it in its cells and with --kvflash by each policy.
After each step the likeliest tokens' logprobs are compared. No times. It must not know how a table looks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from luce.protocol import GenerateOk
from luce.supervisor.text import TextModel
from scripts.bench.residency_prompts import python_text
from scripts.bench.residency_recall import Residency
from scripts.bench.residency_sides import FULL, EngineSettings, RefusedError
from scripts.bench.speculation_prompts import filler
from tests.daemon_driver import DaemonDriver

TEXTS = ("code", "chat")
N_LIKELIEST = 50
STEP = 32  # tokens read between two comparisons

Distribution = dict[int, float]
"""Logprobs of the likeliest tokens."""


@dataclass(frozen=True)
class DivergenceSample:
    """One place of one text."""

    text: str
    seed: int
    """Which text of its kind."""
    percent: int
    n_pool: int
    position: int
    divergence: dict[str, float]
    """From the full cache's distribution, in nats, by policy."""
    has_same_best: dict[str, bool]


def divergence(of: Distribution, to: Distribution) -> float:
    """Kullback-Leibler divergence over the tokens that are among the likeliest of both, all others counted as
    one: never negative, and the true value is no smaller."""
    both = [token for token in of if min(of[token], to.get(token, -math.inf)) > -math.inf]
    pairs = [(math.exp(of[token]), math.exp(to[token])) for token in both]
    rest = [max(1e-12, 1 - sum(values)) for values in zip(*pairs, strict=True)] if pairs else [1.0, 1.0]
    return sum(p * math.log(p / q) for p, q in [*pairs, (rest[0], rest[1])])


def text_of(model: TextModel, name: str, n_tokens: int, seed: int) -> list[int]:
    """Exactly n_tokens."""
    if name == "code":
        return model.tokenize(python_text(model, n_tokens * 11 // 10, seed))[:n_tokens]
    chat = model.render(filler(model, n_tokens * 11 // 10 + 256, seed))
    ids = list(chat.tokens)[:n_tokens]
    chat.close()
    return ids


def measure_divergence(
    settings: EngineSettings,
    residency: Residency,
    seeds: Iterable[int] = (0,),
    texts: Sequence[str] = TEXTS,
    n_points: int = 32,
    report: Callable[[DivergenceSample], None] = lambda _: None,
) -> list[DivergenceSample]:
    """The last n_points steps of a text of each kind for each seed. Raises RefusedError."""
    samples = []
    n_pool = residency.n_pool(settings.n_ubatch)
    with TextModel(settings.model) as model, settings.sides(residency.n_ctx, n_pool) as daemons:
        for seed, text in product(seeds, texts):
            ids = text_of(model, text, residency.n_tokens, seed)
            for position in range(len(ids) - (n_points - 1) * STEP, len(ids) + 1, STEP):
                next_of = {side: _next_token(daemon, ids[:position]) for side, daemon in daemons.items()}
                best = {side: max(next_of[side], key=next_of[side].__getitem__) for side in next_of}
                sample = DivergenceSample(
                    text, seed, residency.percent, n_pool, position,
                    {side: divergence(next_of[FULL], next_of[side]) for side in daemons if side != FULL},
                    {side: best[side] == best[FULL] for side in daemons if side != FULL},
                )  # fmt: skip
                samples.append(sample)
                report(sample)
    return samples


def _next_token(daemon: DaemonDriver, prompt: Sequence[int]) -> Distribution:
    """What was read for the step before is not read again."""
    answer = daemon.generate(prompt, 1, f"logprobs={N_LIKELIEST} marks={len(prompt)}")
    if not isinstance(answer.reply, GenerateOk):
        assert answer.reply is not None
        raise RefusedError(answer.reply)
    return dict(answer.logprobs[0].entries)
