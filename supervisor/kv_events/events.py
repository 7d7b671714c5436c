"""The events, as vLLM publishes them: MessagePack arrays, the fields in these places and before them the event's name.

The names of the classes are what goes over the wire.
"""

from __future__ import annotations

import msgspec


class KvCacheEvent(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(KvCacheEvent):
    block_hashes: list[int]
    """Of blocks that follow each other."""
    parent_block_hash: int | None
    """Of the block before the first; None: a text begins with it."""
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None


class BlockRemoved(KvCacheEvent):
    block_hashes: list[int]
    medium: str | None = None


class AllBlocksCleared(KvCacheEvent):
    pass


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Event]
