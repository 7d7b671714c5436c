"""What a model still finds in a prompt of which only parts are read: each prompt goes to one luced, read whole and read
in parts of each share. Counts, no times. It must not know how a table looks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from luce.protocol import CompressOk
from luce.supervisor.evaluating.tasks.haystack import OWNERS
from luce.supervisor.text import TextModel
from scripts.bench.residency.prompts import KINDS, N_AROUND, depths, needle_prompt, sentences
from scripts.bench.residency.sides import DEADLINE_S, RefusedError
from tests.daemon_driver import DaemonDriver

N_ANSWER = 24  # tokens: the code and a sentence around it
HOPS = "two hops"
SECOND_HOP = "The access code of the {a} is the same as the access code of the {b}."


@dataclass(frozen=True)
class RecallSample:
    kind: str
    n_tokens: int
    depth: float
    whole: bool
    """Whether the answer is right if all is read."""
    found: dict[float, bool]
    """Whether it is if so much is read; of two hops, whether both facts are read."""


def measure_recall(
    start: Callable[[int], DaemonDriver],
    model_path: Path,
    lengths: Sequence[int],
    shares: Sequence[float],
    needles: range,
    report: Callable[[RecallSample], None],
) -> list[RecallSample]:
    """`needles`: the seeds of those at each depth, kind and length; kinds and depths in turns, so that a run which is
    ended early has some of all."""
    samples = []
    with TextModel(model_path) as model:
        for n_tokens in lengths:
            with start(n_tokens) as daemon:
                for kind, depth, seed in _places(needles):
                    ask = _two_hops if kind == HOPS else _needle
                    sample = ask(daemon, model, kind, n_tokens, depth, seed, shares)
                    samples.append(sample)
                    report(sample)
    return samples


def _places(needles: range) -> Iterator[tuple[str, float, int]]:
    for seed in needles:
        for depth in depths(8):
            for kind in (*KINDS, HOPS):
                yield kind, depth, seed


def _needle(
    daemon: DaemonDriver, model: TextModel, kind: str, n_tokens: int, depth: float, seed: int, shares: Sequence[float]
) -> RecallSample:
    prompt = needle_prompt(model, kind, n_tokens, depth, seed)

    def is_right(extra: str) -> bool:
        answer = daemon.generate(prompt.ids, N_ANSWER, f"reuse=0 {extra}")
        return prompt.expected in model.detokenize(answer.tokens).decode(errors="replace")

    found = {share: is_right(f"prefill=sparse prefill_keep={share}") for share in shares}
    return RecallSample(kind, n_tokens, depth, is_right(""), found)


def _two_hops(
    daemon: DaemonDriver, model: TextModel, kind: str, n_tokens: int, depth: float, seed: int, shares: Sequence[float]
) -> RecallSample:
    """The packaged model does not put two facts together, whatever it reads: so what is counted is whether both are
    among the parts."""
    rng = random.Random(f"{kind} {n_tokens} {depth:.4f} {seed}")
    first, second = rng.sample(OWNERS, 2)
    code = str(rng.randrange(10000, 100000))
    facts = [SECOND_HOP.format(a=first, b=second), f"The access code of the {second} is {code}."]
    text = sentences(model, n_tokens - 2 * N_AROUND, rng)
    text.insert(round(len(text) * depth), facts[1])
    text.insert(rng.randrange(len(text) + 1), facts[0])
    question = f"What is the access code of the {first}?"
    chat = model.render([{"role": "user", "content": f"{' '.join(text)}\n\n{question}"}])
    ids = chat.tokens
    chat.close()
    answer = daemon.generate(ids, N_ANSWER, "reuse=0")
    whole = code in model.detokenize(answer.tokens).decode(errors="replace")
    return RecallSample(kind, n_tokens, depth, whole, {s: _reads(daemon, model, ids, s, facts) for s in shares})


def _reads(daemon: DaemonDriver, model: TextModel, ids: Sequence[int], share: float, facts: Sequence[str]) -> bool:
    daemon.send(f"compress id=2 share={share} prompt={','.join(map(str, ids))}")
    kept = daemon.tokens_until_end(DEADLINE_S)
    reply = daemon.next_reply()
    if not isinstance(reply, CompressOk):
        raise RefusedError(reply)
    text = model.detokenize(kept).decode(errors="replace")
    return all(fact in text for fact in facts)
