"""How far does the KV type in use take the model's next-token distributions from those with f16?

Both engines read the same text up to the same positions; what they would say there is compared, and nothing that they
chose goes on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from luce.protocol import Park, Unpark
from luce.supervisor.checking.divergence import (
    CLEAR_LEAD,
    SHARE_UNSAID,
    is_f16,
    kl_divergence,
    lead_of_another,
    most_mean_kl,
)
from luce.supervisor.checking.engines import COLD, Answer, CheckedEngine, Question
from luce.supervisor.checking.finding import Finding, Verdict, left_out
from luce.supervisor.checking.subject import Subject, Volume
from luce.supervisor.checking.texts import CheckText

_N_LIKELIEST = 100  # that the protocol tells at most
_DISTANCE = 7  # tokens between two positions: no multiple of a page, a word or a sentence
_F16 = {"cache_type_k": "f16", "cache_type_v": "f16"}


async def check_kv_type(subject: Subject) -> AsyncIterator[Finding]:
    """KL divergence against f16 at the end of each text; of what --host-cache-type packs, after a way through the
    host."""
    texts = [subject.texts.of_length(length)[0] for length in subject.lengths]
    n_positions = subject.volume.n_positions
    async with subject.plain_engine() as engine:
        kv = engine.ready.get("kv", "")
        here = [] if is_f16(kv) else [await _distributions(engine, text, n_positions) for text in texts]
    packed = subject.starter.config.host_cache_type
    outside: list[list[Answer]] = []
    if packed is not None:
        async with subject.plain_engine(host_cache_type=packed) as engine:
            outside = [await _through_the_host(engine, text, n_positions) for text in texts]
    if not here and not outside:
        yield left_out("kv-type", kv, "f16 is what others are compared with")
        return
    async with subject.plain_engine(**_F16) as engine:
        for i, text in enumerate(texts):
            exact = await _distributions(engine, text, n_positions)
            if here:
                yield _judge(kv, text, exact, here[i], subject.volume)
            if outside:
                finding = _judge(f"{packed} in the host", text, exact, outside[i], subject.volume)
                tier = outside[i][0].final.tier
                yield finding if tier == "host" else _not_packed(finding, tier)


def _not_packed(finding: Finding, tier: str) -> Finding:
    return replace(finding, verdict=Verdict.FAILED, text=f"it came from {tier}, not from the host: nothing was checked")


async def _distributions(engine: CheckedEngine, text: CheckText, n_positions: int) -> list[Answer]:
    """The likeliest tokens at positions with equal distances up to the text's end."""
    return [
        await engine.ask(Question(text.ids[:position], n=1, n_logprobs=_N_LIKELIEST))
        for position in _positions(text, n_positions)
    ]


async def _through_the_host(engine: CheckedEngine, text: CheckText, n_positions: int) -> list[Answer]:
    await engine.ask(Question(text.ids[: _positions(text, n_positions)[0] - 1], n=1, memory=COLD))
    await engine.call(Park())
    await engine.call(Unpark())
    return await _distributions(engine, text, n_positions)


def _positions(text: CheckText, n_positions: int) -> list[int]:
    """In the later half of a short text: what lies before the first of them has to fill pages."""
    length = len(text.ids)
    return sorted(range(length, max(length - n_positions * _DISTANCE, length // 2), -_DISTANCE))


def _judge(kv: str, text: CheckText, exact: Sequence[Answer], found: Sequence[Answer], volume: Volume) -> Finding:
    pairs = [(a.steps[0][1:], b.steps[0][1:]) for a, b in zip(exact, found, strict=True)]
    apart = [kl_divergence(a, b) for a, b in pairs]
    mean = sum(apart) / len(apart)
    leads = [lead_of_another(a, b) for a, b in pairs]  # of f16's likeliest token, where it is another one here
    changed = [lead for lead in leads if lead is not None]
    n_clear = sum(lead >= CLEAR_LEAD for lead in changed)
    limit = most_mean_kl(kv) if volume.most_kl is None else volume.most_kl
    told = (
        f"mean KL {mean:.4f} of at most {limit}, largest {max(apart):.3f}; another token is the likeliest at"
        f" {len(changed)} of {len(pairs)} places, at {n_clear} of them where f16 is clear"
    )
    if limit is None:
        verdict, told = Verdict.LEFT_OUT, f"no limit is known for {kv}: give --max-kl; {told}"
    elif n_clear > volume.most_changed * len(pairs):
        verdict = Verdict.FAILED
        told += f": more than {volume.most_changed:.0%} of all (--max-changed)"
    else:
        verdict = Verdict.PASSED if mean <= limit else Verdict.FAILED
        if len(changed) > SHARE_UNSAID * len(pairs):
            told = f"answers change: {told}"
    return Finding(
        check="kv-type",
        case=f"{kv}, {len(text.ids):,} tokens",
        verdict=verdict,
        compared=f"{kv} / f16",
        n_tokens=len(apart),
        text=told,
        figures={
            "mean_kl": mean,
            "largest_kl": max(apart),
            "same_likeliest": 1 - len(changed) / len(pairs),
            "clearly_changed": n_clear / len(pairs),
        },
    )
