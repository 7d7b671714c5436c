"""Long texts that say nothing, and facts to hide in them. Pure.

The first sentences, owners and wording are what the packaged model was trained on, so that what it misses was lost by
the engine. Other models know them no better than any.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

FILLER = (
    "The wind moved over the hills.", "A train left the station on time.", "Two boats crossed the bay.",
    "The library was quiet that evening.", "The market sold apples and bread.", "A dog slept by the door.",
    "The teacher closed the window.", "Rain fell on the old roof.",
)  # fmt: skip
OWNERS = ("green owl", "red fox", "blue whale", "black cat", "white horse", "grey wolf")
_COLORS = ("amber", "brown", "copper", "golden", "ivory", "orange", "purple", "scarlet", "silver", "yellow")
_ANIMALS = ("badger", "camel", "eagle", "falcon", "goose", "heron", "lizard", "moose", "otter", "panda")
SAMPLE = " ".join(FILLER)
FACT = "The access code of the {owner} is {code}."
QUESTION = "What is the access code of the {owner}?"

_CODE = re.compile(r"(?<!\d)\d{5}(?!\d)")


def sentences(n_chars: int, rng: random.Random) -> list[str]:
    text = []
    while n_chars > 0:
        text.append(rng.choice(FILLER))
        n_chars -= len(text[-1]) + 1
    return text


def codes(n: int, rng: random.Random) -> list[str]:
    """No two are the same."""
    return [str(code) for code in rng.sample(range(10000, 100000), n)]


def more_owners(rng: random.Random) -> Iterator[str]:
    """In any order, each once; behind the last pair they are numbered."""
    pairs = [f"{color} {animal}" for color in _COLORS for animal in _ANIMALS]
    rng.shuffle(pairs)
    yield from pairs
    number = 2
    while True:
        yield from (f"{pair} {number}" for pair in pairs)
        number += 1


def hide(text: list[str], facts: Sequence[str], rng: random.Random) -> None:
    """At any places."""
    for fact in facts:
        text.insert(rng.randrange(len(text) + 1), fact)


def codes_in(answer: str) -> list[str]:
    return _CODE.findall(answer)
