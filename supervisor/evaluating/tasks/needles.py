"""Needles: one code in a long text, six of them, and one that is found by way of another. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from luce.supervisor.evaluating.question import Question, Reply, Scale, Scores, Task, share_found
from luce.supervisor.evaluating.tasks.haystack import FACT, OWNERS, QUESTION, SAMPLE, codes, codes_in, hide, sentences

N_ANSWER = 48
_SHALLOWEST, _DEEPEST = 0.1, 0.9
_N_ASKED = 2  # of six codes in one text: the second question finds the text in the prefix cache
_N_BESIDE = 2
_SAME_AS = "The access code of the {owner} is the same as the access code of the {other}."


def finds_codes(metric: str, expected: list[str]) -> Callable[[Reply], Scores]:
    return lambda reply: {metric: share_found(expected, codes_in(reply.text))}


def question(task: str, name: str, text: list[str], asked: str, expected: list[str], length: int) -> Question:
    """One that is answered with codes."""
    return Question(
        task=task,
        name=name,
        messages=[{"role": "user", "content": f"{' '.join(text)}\n\n{asked}"}],
        max_tokens=N_ANSWER + 12 * len(expected),
        judge=finds_codes(task, expected),
        right=Reply(", ".join(expected)),
        length=length,
    )


def _one(scale: Scale) -> Iterator[Question]:
    """At depths from a tenth to nine tenths, evenly."""
    for length in scale.lengths:
        for number in range(scale.n_samples):
            rng = scale.rng("needle", length, number)
            depth = _SHALLOWEST + (_DEEPEST - _SHALLOWEST) * (number + 0.5) / scale.n_samples
            owner, (code,) = rng.choice(OWNERS), codes(1, rng)
            text = sentences(scale.chars(length), rng)
            text.insert(round(len(text) * depth), FACT.format(owner=owner, code=code))
            name = f"{length:,} tokens, depth {depth:.0%}"
            yield question("needle", name, text, QUESTION.format(owner=owner), [code], length)


def _many(scale: Scale) -> Iterator[Question]:
    for length in scale.lengths:
        for number in range(-(-scale.n_samples // _N_ASKED)):
            rng = scale.rng("needle-many", length, number)
            known = dict(zip(rng.sample(OWNERS, len(OWNERS)), codes(len(OWNERS), rng), strict=True))
            text = sentences(scale.chars(length), rng)
            hide(text, [FACT.format(owner=owner, code=code) for owner, code in known.items()], rng)
            for owner in list(known)[:_N_ASKED]:
                name = f"{length:,} tokens, text {number + 1}, {owner}"
                yield question("needle-many", name, text, QUESTION.format(owner=owner), [known[owner]], length)


def _two_hops(scale: Scale) -> Iterator[Question]:
    """Among other codes: else the only one in the text is the answer."""
    for length in scale.lengths:
        for number in range(scale.n_samples):
            rng = scale.rng("needle-hop", length, number)
            asked, other, *beside = rng.sample(OWNERS, 2 + _N_BESIDE)
            known = dict(zip((other, *beside), codes(1 + _N_BESIDE, rng), strict=True))
            facts = [FACT.format(owner=owner, code=code) for owner, code in known.items()]
            text = sentences(scale.chars(length), rng)
            hide(text, [*facts, _SAME_AS.format(owner=asked, other=other)], rng)
            name = f"{length:,} tokens, {number + 1}"
            yield question("needle-hop", name, text, QUESTION.format(owner=asked), [known[other]], length)


TASKS = (
    Task("needle", "needles", "One code in a long text.", ("needle",), _one, SAMPLE),
    Task("needle-many", "needles", "Six codes in a long text, asked for one by one.", ("needle-many",), _many, SAMPLE),
    Task(
        "needle-hop",
        "needles",
        "A code by way of another owner.",
        ("needle-hop",),
        _two_hops,
        SAMPLE,
    ),
)
