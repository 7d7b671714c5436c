"""Moves of pages as events: a page is a block, its tiers are media. Pure.

A router sends requests to the server, not to an engine: a block is stored as long as some engine holds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from luce.supervisor.kv_events.config import Media
from luce.supervisor.kv_events.events import BlockRemoved, BlockStored, Event
from luce.supervisor.prefix_cache.held_pages import PageMove
from luce.supervisor.prefix_cache.page_changes import Tier

_MEDIA: Mapping[Media, Mapping[Tier, str]] = {
    "each": {Tier.DEVICE: "GPU", Tier.HOST: "CPU", Tier.DISK: "DISK"},
    "one": dict.fromkeys(Tier, "GPU"),
}


def block_hash(page: bytes) -> int:
    """A page's name as a router knows it: 64 bits, without a sign."""
    return int.from_bytes(page[-8:], "big")


def block_events(moves: Sequence[PageMove], media: Media, *, tells_tokens: bool) -> list[Event]:
    """Blocks that follow each other are one event where nothing stands between."""
    events: list[Event] = []
    for move in moves:
        before, now = ({_MEDIA[media][tier] for tier in tiers} for tiers in (move.before, move.now))
        for medium in sorted(now - before):
            _add_stored(events, move, medium, tells_tokens=tells_tokens)
        for medium in sorted(before - now):
            _add_removed(events, move, medium)
    return events


def _add_stored(events: list[Event], move: PageMove, medium: str, *, tells_tokens: bool) -> None:
    text = move.text
    parent = None if text.parent is None else block_hash(text.parent)
    tokens = text.tokens.tolist() if tells_tokens else []
    last = events[-1] if events else None
    if isinstance(last, BlockStored) and last.medium == medium and last.block_hashes[-1] == parent:
        last.block_hashes.append(block_hash(move.name))
        last.token_ids.extend(tokens)
        return
    events.append(BlockStored([block_hash(move.name)], parent, tokens, len(text.tokens), medium=medium))


def _add_removed(events: list[Event], move: PageMove, medium: str) -> None:
    last = events[-1] if events else None
    if isinstance(last, BlockRemoved) and last.medium == medium:
        last.block_hashes.append(block_hash(move.name))
        return
    events.append(BlockRemoved([block_hash(move.name)], medium))
