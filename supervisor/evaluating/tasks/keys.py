"""RULER's harder needles: keys that look alike all over the text, several values of one key, several keys at once.

After Hsieh et al. 2024, "RULER: What's the Real Context Size of Your Long-Context Language Models?". Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from luce.supervisor.evaluating.question import Question, Scale, Task
from luce.supervisor.evaluating.tasks.haystack import (
    FACT,
    OWNERS,
    QUESTION,
    SAMPLE,
    codes,
    hide,
    more_owners,
    sentences,
)
from luce.supervisor.evaluating.tasks.needles import question

_N_VALUES = 3
_N_QUERIES = 3
_ONE_OF = "One of the access codes of the {owner} is {code}."


def _multi_key(scale: Scale) -> Iterator[Question]:
    """The text is nothing but facts of others."""
    for length in scale.lengths:
        for number in range(scale.n_samples):
            rng = scale.rng("multi-key", length, number)
            owner, (code,) = rng.choice(OWNERS), codes(1, rng)
            owners, text, n_left = more_owners(rng), [], scale.chars(length)
            while n_left > 0:
                text.append(FACT.format(owner=next(owners), code=rng.choice([c for c in codes(2, rng) if c != code])))
                n_left -= len(text[-1]) + 1
            hide(text, [FACT.format(owner=owner, code=code)], rng)
            name = f"{length:,} tokens, {number + 1}"
            yield question("multi-key", name, text, QUESTION.format(owner=owner), [code], length)


def _multi_value(scale: Scale) -> Iterator[Question]:
    for length in scale.lengths:
        for number in range(scale.n_samples):
            rng = scale.rng("multi-value", length, number)
            owner, other = rng.sample(OWNERS, 2)
            values = codes(2 * _N_VALUES, rng)
            text = sentences(scale.chars(length), rng)
            hide(text, [_ONE_OF.format(owner=owner, code=code) for code in values[:_N_VALUES]], rng)
            hide(text, [_ONE_OF.format(owner=other, code=code) for code in values[_N_VALUES:]], rng)
            asked = f"What are all {_N_VALUES} access codes of the {owner}?"
            yield question("multi-value", f"{length:,} tokens, {number + 1}", text, asked, values[:_N_VALUES], length)


def _multi_query(scale: Scale) -> Iterator[Question]:
    for length in scale.lengths:
        for number in range(scale.n_samples):
            rng = scale.rng("multi-query", length, number)
            known = dict(zip(rng.sample(OWNERS, len(OWNERS)), codes(len(OWNERS), rng), strict=True))
            text = sentences(scale.chars(length), rng)
            hide(text, [FACT.format(owner=owner, code=code) for owner, code in known.items()], rng)
            owners = list(known)[:_N_QUERIES]
            named = ", ".join(f"the {owner}" for owner in owners[:-1]) + f" and the {owners[-1]}"
            yield question(
                "multi-query", f"{length:,} tokens, {number + 1}", text, f"What are the access codes of {named}?",
                [known[owner] for owner in owners], length,
            )  # fmt: skip


TASKS = (
    Task(
        "multi-key",
        "ruler",
        "One code in a text that has nothing but codes.",
        ("multi-key",),
        _multi_key,
        SAMPLE,
    ),
    Task("multi-value", "ruler", "All three codes of one owner.", ("multi-value",), _multi_value, SAMPLE),
    Task("multi-query", "ruler", "The codes of three owners at once.", ("multi-query",), _multi_query, SAMPLE),
)
