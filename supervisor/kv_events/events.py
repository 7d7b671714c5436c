"""The events, as vLLM publishes them: MessagePack arrays, the fields in these places and before them the event's name,
or maps of the same fields with the name under `type`. A batch is an array in both.

The names of the classes and fields are what goes over the wire. Decoders made of vLLM's own classes want all fields.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from luce.supervisor.kv_events.config import Encoding

_encode = msgspec.msgpack.Encoder().encode


class KvCacheEvent(msgspec.Struct, array_like=True, gc=False, tag=True):
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
    lora_name: str | None = None


class BlockRemoved(KvCacheEvent):
    block_hashes: list[int]
    medium: str | None = None


class AllBlocksCleared(KvCacheEvent):
    pass


Event = BlockStored | BlockRemoved | AllBlocksCleared


def encode_batch(time_s: float, events: Sequence[Event], encoding: Encoding) -> bytes:
    if encoding == "array":
        return _encode((time_s, events))
    return _encode((time_s, [{"type": type(event).__name__} | msgspec.structs.asdict(event) for event in events]))
