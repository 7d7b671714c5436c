"""Subject: what is checked, and how much: the engine with its options, the texts, and the plain engine's answers to
them, which all other ways of computing them have to give.

Each reference is computed once. Knows no check.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from luce.protocol import MemoryArgs
from luce.supervisor.checking.engines import Answer, CheckedEngine, EngineStarter, Question
from luce.supervisor.checking.texts import CheckText, Texts

_ROOM = 512  # tokens behind the longest text: answers, and what a conversation adds
_ENDING = 16  # tokens at the most by which endings are longer than the shortest one
_SLICE = 64  # tokens of a prompt that are computed at once where pools are to be small
_CELLS = 256  # libllama's caches have cells in such numbers
PLAIN: dict[str, Any] = {
    "draft": None,
    "mtp": False,
    "draft_method": None,
    "draft_max": 0,
    "draft_tree": None,
    "draft_cache_type_k": None,
    "draft_cache_type_v": None,
    "draft_gpu_layers": None,
    "draft_threads": None,
}
"""Without speculation."""
EXACT: dict[str, Any] = {
    "disk_cache": None,
    "host_cache_type": None,
    "kvflash": None,
    "kvflash_tau": None,
    "kvflash_policy": None,
    "kvflash_pin": None,
    "kvflash_scorer": None,
    "kvflash_scorer_cache_type": None,
    "kvflash_layer": None,
    "prefill": None,
    "prefill_scorer": None,
    "prefill_keep": None,
    "prefill_from": None,
    "prefill_repair": None,
}
"""Without what is an approximation by design, and without what others have left on disk."""


def round_up(n_tokens: int) -> int:
    """To what a pool may have."""
    return -(-n_tokens // _CELLS) * _CELLS


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """How much is compared."""

    lengths: tuple[int, ...] = (1024, 4096, 32768)
    n_answer: int = 48
    n_seeds: int = 400
    n_sampled: int = 2
    """Texts that are gone on with by each seed."""
    n_positions: int = 48
    """Of each text, at which distributions are compared."""
    n_turns: int = 6
    noise: float | None = None
    """In logits; None: as it is measured."""
    most_kl: float | None = None
    """Mean, against f16; None: as the KV type promises."""
    most_changed: float = 0.05
    """Of the places, where another token is the likeliest although f16 is clear."""


QUICK = Volume(lengths=(256, 1024), n_answer=16, n_seeds=80, n_positions=24, n_turns=4)


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    length: int
    texts: Sequence[CheckText]
    """One body, with all its endings."""
    references: Sequence[Answer]


@dataclass
class Subject:
    starter: EngineStarter
    texts: Texts
    volume: Volume
    ctx: int
    lengths: Sequence[int]
    """Those of the volume that are within its reach."""
    folder: Path
    """For what a check writes; its owner removes it."""
    noise: float
    """In logits: how close two tokens are that rounding may turn, and how far it may move a log-probability."""
    known_references: dict[CheckText, Answer] = field(default_factory=dict)

    def engine(self, **changes: Any) -> AbstractAsyncContextManager[CheckedEngine]:
        """With the options that are to be checked, as far as they promise exact memory; `changes` win."""
        return self.starter.engine(**(EXACT | {"ctx": self.ctx} | changes))

    def plain_engine(self, **changes: Any) -> AbstractAsyncContextManager[CheckedEngine]:
        """And without speculation."""
        return self.engine(**(PLAIN | changes))

    def bounded_engine(self, pool: int) -> AbstractAsyncContextManager[CheckedEngine]:
        """With a pool that texts may outgrow: as the options say it is used, but of this size."""
        small = {"pool": None, "lanes": 1, "ubatch": _SLICE, "kvflash": pool}
        bounds = {name: getattr(self.starter.config, name) for name in EXACT if name.startswith("kvflash_")}
        return self.plain_engine(**(bounds | small))

    def question(self, text: CheckText, **changes: Any) -> Question:
        return Question(text.ids, **({"n": self.volume.n_answer} | changes))

    async def cases(self) -> list[Case]:
        """The texts of each length, with what has to come. No other engine should be there meanwhile: a large model may
        fit but once."""
        groups = [self.texts.of_length(length) for length in self.lengths]
        references = await self.references(groups)
        return [
            Case(f"{length:,} tokens", length, texts, answers)
            for length, texts, answers in zip(self.lengths, groups, references, strict=True)
        ]

    async def references(self, groups: Sequence[Sequence[CheckText]]) -> list[list[Answer]]:
        """The plain engine's answers to groups of texts with one body: the first of each is read from the start, the
        others go on from that body where it lies."""
        known = self.known_references
        if any(text not in known for group in groups for text in group):
            async with self.plain_engine() as engine:
                for group in groups:
                    for i, text in enumerate(group):
                        memory = MemoryArgs(reuse=i > 0, marks=(text.n_body,))
                        known[text] = known.get(text) or await engine.ask(self.question(text, memory=memory))
        return [[known[text] for text in group] for group in groups]


@dataclass(frozen=True, slots=True)
class Reach:
    """How long texts may be."""

    ctx: int
    lengths: tuple[int, ...]
    beyond: tuple[int, ...]
    why: str


def reach_of(volume: Volume, *, ctx: int | None, n_trained: int, pool: int | None) -> Reach:
    """`ctx`: what the user has said; else as much as the longest text wants, and the model was trained with. `pool`:
    cells, where that was said."""
    wanted = round_up(max(volume.lengths) + _ROOM)
    chosen = ctx or min(wanted, n_trained or wanted)
    limit = min(chosen, pool or chosen)
    fits = tuple(length for length in volume.lengths if length + volume.n_answer + _ENDING < limit)
    beyond = tuple(length for length in volume.lengths if length not in fits)
    why = f"the pool has {limit:,} tokens" if limit < chosen else f"the context has {chosen:,} tokens"
    return Reach(chosen, fits, beyond, why)
