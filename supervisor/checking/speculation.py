"""Are the tokens the same in several lanes, and with drafts: n-grams, a drafter, alone and in lanes?

Drafts are always made here (`--draft-adaptive off`): whether they pay is the controller's question, not this one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from luce.supervisor.checking.engines import COLD, Answer, CheckedEngine
from luce.supervisor.checking.finding import Finding, left_out
from luce.supervisor.checking.judging import Judge
from luce.supervisor.checking.subject import PLAIN, Subject
from luce.supervisor.checking.texts import CheckText

_N_BESIDE = 4  # texts of the shortest length, so that lanes are busy at once
ALWAYS: dict[str, Any] = {"draft_gate": "off"}


async def check_lanes(subject: Subject) -> AsyncIterator[Finding]:
    """Several lanes at once, without drafts."""
    texts = _texts_for_lanes(subject)
    references = await _references(subject, texts)
    async with subject.plain_engine() as engine:
        yield await _in_lanes(subject, "lanes", engine, texts, references)


async def check_ngrams(subject: Subject) -> AsyncIterator[Finding]:
    """Drafts that are copied from earlier text."""
    if subject.starter.config.draft_ngram == "off" or subject.starter.config.draft_max == 0:
        yield left_out("ngrams", "", "--draft-ngram off, or --draft-max 0: nothing is drafted so")
        return
    options = {**PLAIN, **ALWAYS, "draft_max": subject.starter.config.draft_max}
    async for finding in _drafted(subject, "ngrams", options):
        yield finding


async def check_drafter(subject: Subject) -> AsyncIterator[Finding]:
    """Drafts of the drafter alone, without n-grams."""
    config = subject.starter.config
    if (config.draft is None and not config.mtp) or config.draft_max == 0:
        yield left_out("drafter", "", "there is none: name one with --draft, or give --mtp")
        return
    async for finding in _drafted(subject, "drafter", {**ALWAYS, "draft_ngram": "off"}):
        yield finding


async def _drafted(subject: Subject, check: str, options: dict[str, Any]) -> AsyncIterator[Finding]:
    texts = _texts_for_lanes(subject)
    references = await _references(subject, texts)
    async with subject.engine(**options) as engine:
        for text, reference in zip(texts[: len(subject.lengths)], references, strict=False):
            judge = Judge(check, f"{len(text.ids):,} tokens, alone", "with drafts / without", subject.noise)
            answer = await engine.ask(subject.question(text, memory=COLD))
            judge.compare("alone", answer, reference)
            _need_drafts(judge, [answer])
            yield judge.finding(_drafts_of([answer]))
        yield await _in_lanes(subject, check, engine, texts, references)


async def _in_lanes(
    subject: Subject, check: str, engine: CheckedEngine, texts: Sequence[CheckText], references: Sequence[Answer]
) -> Finding:
    if engine.info.lanes < 2:
        return left_out(check, "in lanes", "--lanes 1: there is nothing beside a request")
    judge = Judge(check, f"{len(texts)} texts at once", "together / alone, without drafts", subject.noise)
    before = await engine.status()
    answers = await engine.ask_together([subject.question(text, memory=COLD) for text in texts])
    after = await engine.status()
    for i, (answer, reference) in enumerate(zip(answers, references, strict=True)):
        judge.compare(f"text {i + 1}", answer, reference)
    n_calls, n_lanes = (int(after[name]) - int(before[name]) for name in ("calls", "call_lanes"))
    judge.need(n_lanes > n_calls, "no two of them were ever computed together: nothing was checked")
    if check != "lanes":
        _need_drafts(judge, answers)
    lanes = f"{n_lanes / max(n_calls, 1):.1f} lanes a call"
    return judge.finding(lanes if check == "lanes" else f"{lanes}, {_drafts_of(answers)}")


def _texts_for_lanes(subject: Subject) -> list[CheckText]:
    """One of each length, and further ones of the shortest, each with a body of its own."""
    each = [subject.texts.of_length(length)[0] for length in subject.lengths]
    return each + [subject.texts.of_length(subject.lengths[0], variant)[0] for variant in range(1, _N_BESIDE)]


async def _references(subject: Subject, texts: Sequence[CheckText]) -> list[Answer]:
    return [answer for [answer] in await subject.references([[text] for text in texts])]


def _need_drafts(judge: Judge, answers: Sequence[Answer]) -> None:
    judge.need(any(answer.n_drafted for answer in answers), "nothing was drafted: nothing was checked")


def _drafts_of(answers: Sequence[Answer]) -> str:
    spoken = [answer.final.speculation for answer in answers if answer.final.speculation is not None]
    return f"{sum(s.n_accepted for s in spoken)} of {sum(s.n_drafted for s in spoken)} drafted tokens accepted"
