"""Do texts come back as they were: from the engine's own memory, from a slot, after park, after a restart from disk?

Each way back has to give the plain engine's tokens, and has to have been taken: an engine that reads all of the prompt
again says the right thing, and keeps no promise.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from luce.protocol import Clear, MemoryArgs, Park, SnapshotPoint, Unpark
from luce.supervisor.checking.engines import COLD, Answer
from luce.supervisor.checking.finding import Finding, left_out
from luce.supervisor.checking.judging import Judge
from luce.supervisor.checking.subject import Subject
from luce.supervisor.checking.texts import CheckText


async def check_reuse(subject: Subject) -> AsyncIterator[Finding]:
    """Behind a shorter text that it begins with, and whole, from what the engine remembers."""
    cases = await subject.cases()
    async with subject.plain_engine() as engine:
        if not engine.info.reuses:
            yield left_out("reuse", "", "the engine does not look for known beginnings (--prefix-cache off)")
            return
        for case in cases:
            texts = case.texts
            judge = Judge("reuse", case.name, "gone on with / read from the start", subject.noise)
            beginning = replace(texts[0], ids=texts[0].ids[: texts[0].n_body * 3 // 4])
            await engine.ask(subject.question(beginning, n=1))
            for text, reference in zip([*texts, texts[0]], [*case.references, case.references[0]], strict=True):
                answer = await engine.ask(subject.question(text, memory=_marked(text)))
                judge.compare(text.name, answer, reference)
                _need_most(judge, text.name, answer)
            yield judge.finding()


async def check_restore(subject: Subject) -> AsyncIterator[Finding]:
    """From snapshots that were taken on the way: at three quarters of the text, and within its last page."""
    cases = await subject.cases()
    async with subject.plain_engine() as engine:
        if engine.info.slots < 2:
            why = "this model's memory cannot be cut into pages, or --slots is below 2: there are no slots to restore"
            yield left_out("restore", "", why)
            return
        for case in cases:
            texts = case.texts
            judge = Judge("restore", case.name, "restored / read from the start", subject.noise)
            n_body = texts[0].n_body
            places = (n_body * 3 // 4, n_body - 7)
            points = tuple(SnapshotPoint(place, slot) for slot, place in enumerate(places))
            await engine.ask(subject.question(texts[0], n=1, memory=replace(COLD, snapshots=points)))
            await engine.call(Clear())
            for i, (text, reference) in enumerate(zip(texts, case.references, strict=True)):
                slot = 0 if i == 0 else 1  # the earlier one once: what lies behind it has to be read again
                answer = await engine.ask(subject.question(text, memory=MemoryArgs(restore_slot=slot)))
                judge.compare(f"{text.name} from {places[slot]:,}", answer, reference)
                went_on = answer.final.restored
                judge.need(went_on == places[slot], f"from {places[slot]:,}: the engine went on from {went_on}")
            yield judge.finding()


async def check_park(subject: Subject) -> AsyncIterator[Finding]:
    """After the device's memory was given back and taken again."""
    cases = await subject.cases()
    async with subject.plain_engine() as engine:
        if not engine.info.reuses or engine.info.host_bytes == 0:
            yield left_out("park", "", "nothing is kept while parked: --prefix-cache off, or --host-cache 0")
            return
        for case in cases:
            texts = case.texts
            judge = Judge("park", case.name, "after park and unpark / read from the start", subject.noise)
            await engine.ask(subject.question(texts[0], n=1, memory=replace(COLD, marks=(texts[0].n_body,))))
            await engine.call(Park())
            await engine.call(Unpark())
            for text, reference in zip(texts, case.references, strict=True):
                answer = await engine.ask(subject.question(text))
                judge.compare(text.name, answer, reference)
                _need_most(judge, text.name, answer)
            yield judge.finding()


async def check_disk(subject: Subject) -> AsyncIterator[Finding]:
    """After a restart, from the files of --disk-cache."""
    files = {"disk_cache": subject.folder / "disk"}
    cases = await subject.cases()
    async with subject.plain_engine(**files) as engine:
        if engine.info.disk_bytes == 0 or not engine.info.reuses:
            yield left_out("disk", "", "this engine keeps nothing on disk (--disk-budget 0, or --prefix-cache off)")
            return
        for case in cases:
            first = case.texts[0]
            await engine.ask(subject.question(first, n=1, memory=replace(COLD, marks=(first.n_body,))))
    async with subject.plain_engine(**files) as engine:
        for case in cases:
            texts = case.texts
            judge = Judge("disk", case.name, "after a restart / read from the start", subject.noise)
            for text, reference in zip(texts, case.references, strict=True):
                answer = await engine.ask(subject.question(text))
                judge.compare(text.name, answer, reference)
                _need_most(judge, text.name, answer)
                tier = answer.final.tier
                judge.need(text is not texts[0] or tier == "disk", f"the first time it came from {tier}, not from disk")
            n_corrupt = await engine.status_number("disk_corrupt")
            judge.need(n_corrupt == 0, f"{n_corrupt} files were not what their names say")
            yield judge.finding()


def _marked(text: CheckText) -> MemoryArgs:
    """With a checkpoint where the endings part, for models that need one there."""
    return MemoryArgs(marks=(text.n_body,))


def _need_most(judge: Judge, name: str, answer: Answer) -> None:
    """Half of the prompt: where a model needs checkpoints, one stands behind its middle."""
    final = answer.final
    judge.need(
        2 * final.n_reused >= final.n_prompt,
        f"{name}: only {final.n_reused:,} of {final.n_prompt:,} tokens were reused (miss={final.miss})",
    )
