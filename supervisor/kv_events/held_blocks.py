"""HeldBlocks: what the engines of a server hold together, and what changes of it when one of them tells of its pages.

A router sends requests to the server, not to an engine: a block is held as long as some engine holds it. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from luce.protocol import RemoteProtocolError
from luce.supervisor.kv_events.config import Media
from luce.supervisor.kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from luce.supervisor.scheduling.page_changes import PageChange, PageText, Tier

_MEDIA: Mapping[Media, Mapping[Tier, str]] = {
    "each": {Tier.DEVICE: "GPU", Tier.HOST: "CPU", Tier.DISK: "DISK"},
    "one": dict.fromkeys(Tier, "GPU"),
}


@dataclass(slots=True)
class _Block:
    text: PageText
    holders: Counter[str] = field(default_factory=Counter)
    """By medium: how many engines hold it there."""


def block_hash(page: bytes) -> int:
    """A page's name as a router knows it: 64 bits, without a sign."""
    return int.from_bytes(page[-8:], "big")


class HeldBlocks:
    def __init__(self, *, media: Media = "each", tells_tokens: bool = True) -> None:
        self._media = _MEDIA[media]
        self._tells_tokens = tells_tokens
        self._blocks: dict[bytes, _Block] = {}
        self._pages: dict[str, dict[bytes, frozenset[str]]] = {}  # engine -> page -> media

    def change(self, engine: str, changes: Sequence[PageChange], *, begins_anew: bool = False) -> list[Event]:
        """What is to be told of it. Raises RemoteProtocolError for a page whose text was never told."""
        events = _Events(self._tells_tokens)
        if begins_anew:
            self._lose(engine, events)
        pages = self._pages.setdefault(engine, {})
        for change in changes:
            self._move(events, pages, change)
        return events.told

    def lose(self, engine: str) -> list[Event]:
        """The engine is gone."""
        events = _Events(self._tells_tokens)
        self._lose(engine, events)
        return events.told

    def listing(self) -> list[Event]:
        """All that is held, for somebody who knows nothing, or something wrong."""
        events = _Events(self._tells_tokens)
        events.told.append(AllBlocksCleared())
        for name, block in self._parents_first():
            for medium in sorted(block.holders):
                events.stored(name, block.text, medium)
        return events.told

    def _lose(self, engine: str, events: _Events) -> None:
        pages = self._pages.pop(engine, {})
        if pages and not any(self._pages.values()):
            self._blocks.clear()
            events.cleared()
            return
        for name in list(pages):
            self._move(events, pages, PageChange(name, frozenset()))

    def _move(self, events: _Events, pages: dict[bytes, frozenset[str]], change: PageChange) -> None:
        name = change.name
        block = self._blocks.get(name)
        if block is None and change.text is not None:
            block = self._blocks[name] = _Block(change.text)
        if block is None:
            raise RemoteProtocolError(f"page {name.hex()} was told of, but never its text")
        before = pages.get(name, frozenset())
        now = frozenset(self._media[tier] for tier in change.tiers)
        for medium in sorted(now - before):
            block.holders[medium] += 1
            if block.holders[medium] == 1:
                events.stored(name, block.text, medium)
        for medium in sorted(before - now):
            block.holders[medium] -= 1
            if block.holders[medium] == 0:
                del block.holders[medium]
                events.removed(name, medium)
        if now:
            pages[name] = now
        else:
            pages.pop(name, None)
        if not block.holders:
            del self._blocks[name]

    def _parents_first(self) -> Iterator[tuple[bytes, _Block]]:
        told: set[bytes] = set()
        for name in self._blocks:
            chain = []
            at: bytes | None = name
            while at is not None and at in self._blocks and at not in told:
                told.add(at)
                chain.append(at)
                at = self._blocks[at].text.parent
            for link in reversed(chain):
                yield link, self._blocks[link]


class _Events:
    """Blocks that follow each other, in one event where nothing stands between."""

    def __init__(self, tells_tokens: bool) -> None:
        self._tells_tokens = tells_tokens
        self.told: list[Event] = []

    def stored(self, name: bytes, text: PageText, medium: str) -> None:
        parent = None if text.parent is None else block_hash(text.parent)
        tokens = text.tokens.tolist() if self._tells_tokens else []
        last = self.told[-1] if self.told else None
        follows = isinstance(last, BlockStored) and last.medium == medium and last.block_hashes[-1] == parent
        if isinstance(last, BlockStored) and follows:
            last.block_hashes.append(block_hash(name))
            last.token_ids.extend(tokens)
            return
        self.told.append(BlockStored([block_hash(name)], parent, tokens, len(text.tokens), medium=medium))

    def removed(self, name: bytes, medium: str) -> None:
        last = self.told[-1] if self.told else None
        if isinstance(last, BlockRemoved) and last.medium == medium:
            last.block_hashes.append(block_hash(name))
            return
        self.told.append(BlockRemoved([block_hash(name)], medium))

    def cleared(self) -> None:
        self.told.append(AllBlocksCleared())
