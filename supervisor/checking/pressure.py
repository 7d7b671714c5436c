"""Are answers the same when there is too little room: a running text that is set aside for another one, and texts whose
pages leave a bounded pool and come back?
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from luce.protocol import Clear
from luce.supervisor.checking.engines import COLD
from luce.supervisor.checking.finding import Finding, left_out
from luce.supervisor.checking.judging import Judge
from luce.supervisor.checking.subject import Subject, round_up
from luce.supervisor.checking.texts import CheckText

_LESS = 24
_PAGE = 64  # tokens
_ENDING = 16  # by which one of a text's endings may be longer than another


async def check_suspend(subject: Subject) -> AsyncIterator[Finding]:
    """Two answers at once in a pool that cannot hold both to their ends."""
    # Two of them are no more than the context, so that the pool needs no more memory than it has otherwise. Somewhat
    # shorter than other checks' texts: what a pool of whole steps has behind two of them is then little.
    for n_prompt in dict.fromkeys(min(length, subject.ctx // 2) - _LESS for length in subject.lengths):
        pair = [subject.texts.of_length(n_prompt, variant)[variant] for variant in range(2)]
        n_prompts = sum(len(text.ids) for text in pair)
        pool = round_up(n_prompts + 1)
        n_answer = (pool - n_prompts) // 2 + _PAGE
        judge = Judge("suspend", f"{n_prompt:,} tokens, twice", "set aside / alone", subject.noise)
        async with subject.plain_engine(
            pool=pool, lanes=2, ctx=max(len(text.ids) for text in pair) + n_answer + 1
        ) as engine:
            alone = [await engine.ask(subject.question(text, n=n_answer, memory=COLD)) for text in pair]
            together = await engine.ask_together([subject.question(text, n=n_answer) for text in pair])
            for text, answer, reference in zip(pair, together, alone, strict=True):
                judge.compare(f"answer to {text.name}", answer, reference)
            n_suspended = await engine.status_number("suspensions")
        judge.need(n_suspended > 0, f"neither was set aside in a pool of {pool:,} tokens: nothing was checked")
        yield judge.finding(f"{n_suspended} times set aside")


async def check_paging(subject: Subject) -> AsyncIterator[Finding]:
    """With --kv-offload: the same tokens while a text fits the pool, also after it has left it for another one; and the
    same approximation each time where it does not fit."""
    for case in await subject.cases():
        texts, references = case.texts, case.references
        other = subject.texts.of_length(case.length, 1)[0]
        pool = round_up(case.length + _ENDING + subject.volume.n_answer + _PAGE)
        judge = Judge("paging", f"{case.name}, fits", "left the pool and came back / read whole", subject.noise)
        async with subject.bounded_engine(pool) as engine:
            least = engine.info.kvflash_least or 0
            marked = replace(COLD, marks=(texts[0].n_body,))
            first = await engine.ask(subject.question(texts[0], memory=marked))
            judge.compare("the first time", first, references[0])
            await engine.ask(subject.question(other, memory=COLD))
            for text, reference in zip(texts, references, strict=True):
                answer = await engine.ask(subject.question(text))
                judge.compare(f"{text.name}, back in the pool", answer, reference)
                final = answer.final
                judge.need(
                    text is not texts[0] or (final.n_reused > 0 and final.tier == "host"),
                    f"it did not come back from the host ({final.n_reused:,} tokens from {final.tier},"
                    f" miss={final.miss})",
                )
        yield judge.finding()
        yield await _beyond_the_pool(subject, case.name, texts[0], max(case.length // 2 // _PAGE * _PAGE, least))


async def _beyond_the_pool(subject: Subject, case: str, text: CheckText, pool: int) -> Finding:
    """What is computed with a part of a text in sight is an approximation: but the same one each time."""
    case = f"{case}, does not fit"
    if pool >= len(text.ids):
        return left_out("paging", case, f"the smallest pool that works has {pool:,} tokens: such a text fits")
    judge = Judge("paging", case, "read again / the first time", subject.noise)
    async with subject.bounded_engine(pool) as engine:
        first = await engine.ask(subject.question(text, memory=COLD))
        await engine.call(Clear())
        judge.compare(f"pool of {pool:,}", await engine.ask(subject.question(text, memory=COLD)), first)
        n_moved = await engine.status_number("pages_moved_out")
    judge.need(n_moved > 0, f"no page left a pool of {pool:,} tokens: nothing was checked")
    return judge.finding(f"{n_moved} pages left the pool")
