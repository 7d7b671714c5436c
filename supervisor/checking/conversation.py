"""Does a conversation that grows get an answer at every turn: read from the start, gone on with, and from a slot?

An engine whose memory is damaged often shows it so: logits that are no numbers, or an answer that ends at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import isfinite

from luce.protocol import MemoryArgs, SnapshotPoint
from luce.supervisor.checking.engines import COLD, Answer, CheckedEngine, Question
from luce.supervisor.checking.finding import Finding, left_out
from luce.supervisor.checking.judging import Judge
from luce.supervisor.checking.subject import Subject
from luce.supervisor.text import TextModel
from luce.supervisor.text.errors import TemplateError

_FIRST_CHARACTERS, _LAST_CHARACTERS = 130, 26_000
_CHARACTERS_A_TOKEN = 3  # at the least, of English text: what fits the context
_N_ANSWER = 48
_SLOT = 0


async def check_conversation(subject: Subject) -> AsyncIterator[Finding]:
    """Several calls that go on with one conversation: no answer is empty, no logprob is not a number."""
    model = subject.texts.model
    if model is None:
        yield left_out("conversation", "", "the model has no vocabulary of texts")
        return
    room = subject.ctx - 2 * subject.volume.n_turns * _N_ANSWER
    sizes = _sizes(subject.volume.n_turns, min(_LAST_CHARACTERS, room * _CHARACTERS_A_TOKEN * 3 // 4))
    messages: list[dict[str, str]] = []
    before: Sequence[int] = ()
    async with subject.engine() as engine:
        for turn, n_characters in enumerate(sizes):
            messages.append({"role": "user", "content": subject.texts.message(n_characters, turn)})
            prompt = _prompt(model, messages)
            judge = Judge("conversation", f"turn {turn + 1}", "gone on with, from a slot / cold", subject.noise)
            cold = await _take_turn(engine, judge, model, prompt, _common(prompt, before))
            messages.append({"role": "assistant", "content": model.detokenize(cold.tokens).decode(errors="replace")})
            before = prompt
            yield judge.finding(f"a prompt of {len(prompt):,} tokens, answers of {len(cold.tokens)}")


async def _take_turn(
    engine: CheckedEngine, judge: Judge, model: TextModel, prompt: Sequence[int], n_common: int
) -> Answer:
    """The turn in every way, the first one cold."""
    question = Question(prompt, n=_N_ANSWER, ignore_eos=False)
    has_slots = engine.info.slots > 0 and n_common > 0
    memory = replace(COLD, snapshots=(SnapshotPoint(n_common, _SLOT),)) if has_slots else COLD
    warm = await engine.ask(question)
    cold = await engine.ask(replace(question, memory=memory))
    answers = {"cold": cold, "gone on with": warm}
    if has_slots:
        answers["from a slot"] = await engine.ask(replace(question, memory=MemoryArgs(restore_slot=_SLOT)))
    for name, answer in answers.items():
        judge.need(_has_text(model, answer), f"{name}: the answer is empty (tokens {list(answer.tokens)})")
        bad = [i for i, step in enumerate(answer.steps) if not isfinite(step[0][1])]
        judge.need(not bad, f"{name}: the logprob of token {bad[:1]} is no number")
        if name != "cold":
            judge.compare(name, answer, cold)
    return cold


def _sizes(n_turns: int, last: int) -> list[int]:
    """Of each turn's message: the whole grows from the first size to the last by equal factors."""
    factor = (max(last, _FIRST_CHARACTERS) / _FIRST_CHARACTERS) ** (1 / max(n_turns - 1, 1))
    totals = [int(_FIRST_CHARACTERS * factor**turn) for turn in range(n_turns)]
    return [totals[0], *(b - a for a, b in pairwise(totals))]


def _prompt(model: TextModel, messages: Sequence[dict[str, str]]) -> Sequence[int]:
    try:
        return model.render(messages).tokens
    except TemplateError:
        text = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
        return model.tokenize(f"{text}\nassistant:", add_special=True)


def _common(here: Sequence[int], there: Sequence[int]) -> int:
    pairs = zip(here, there, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(here), len(there)))


def _has_text(model: TextModel, answer: Answer) -> bool:
    written = [token for token in answer.tokens if token not in model.info.eog]
    return model.detokenize(written).strip() != b""
