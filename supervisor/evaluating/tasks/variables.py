"""RULER's variable tracking: which variables hold a value that was handed on from one to the next? Pure."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterator
from itertools import pairwise

from luce.supervisor.evaluating.question import Question, Reply, Scale, Scores, Task, share_found
from luce.supervisor.evaluating.tasks.haystack import SAMPLE, codes, sentences

_N_CHAINS = 2
_N_HOPS = 4
_NAME = re.compile(r"(?<![A-Z])[A-Z]{5}(?![A-Z])")


def _names(n: int, rng: random.Random) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < n:
        names["".join(rng.choices(string.ascii_uppercase, k=5))] = None
    return list(names)


def _tracking(scale: Scale) -> Iterator[Question]:
    for length in scale.lengths:
        for number in range(scale.n_samples):
            rng = scale.rng("variables", length, number)
            names, values = _names(_N_CHAINS * (_N_HOPS + 1), rng), codes(_N_CHAINS, rng)
            chains = [names[i * (_N_HOPS + 1) : (i + 1) * (_N_HOPS + 1)] for i in range(_N_CHAINS)]
            text = sentences(scale.chars(length), rng)
            # Each chain in its order, chains in each other's way; from the back, so that places hold.
            lines = [line for chain, value in zip(chains, values, strict=True) for line in _lines(chain, value)]
            owners = [at for at, chain in enumerate(chains) for _ in chain]
            rng.shuffle(owners)
            waiting = [iter(lines[at * (_N_HOPS + 1) : (at + 1) * (_N_HOPS + 1)]) for at in range(_N_CHAINS)]
            places = sorted(rng.randrange(len(text) + 1) for _ in lines)
            ordered = [next(waiting[owner]) for owner in owners]
            for place, line in reversed(list(zip(places, ordered, strict=True))):
                text.insert(place, line)
            asked = f"Which variables hold the value {values[0]}? Name all {_N_HOPS + 1} of them."
            yield Question(
                task="variables",
                name=f"{length:,} tokens, {number + 1}",
                messages=[{"role": "user", "content": f"{' '.join(text)}\n\n{asked}"}],
                max_tokens=128,
                judge=_Judge(tuple(chains[0]), frozenset(names)),
                right=Reply(", ".join(chains[0])),
                length=length,
            )


def _lines(chain: list[str], value: str) -> list[str]:
    handed_on = [f"VAR {name} = VAR {before}." for before, name in pairwise(chain)]
    return [f"VAR {chain[0]} = {value}.", *handed_on]


class _Judge:
    def __init__(self, expected: tuple[str, ...], known: frozenset[str]) -> None:
        self._expected = expected
        self._known = known

    def __call__(self, reply: Reply) -> Scores:
        """A word of capitals that is none of the variables counts for nothing."""
        return {"variables": share_found(self._expected, self._known & set(_NAME.findall(reply.text)))}


TASKS = (Task("variables", "ruler", "The variables that a value was handed on to.", ("variables",), _tracking, SAMPLE),)
