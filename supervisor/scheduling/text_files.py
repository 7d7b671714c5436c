"""A text's memory as a file: what one engine has computed of it, written and read by the engine itself.

It goes through a slot that nothing else uses, one text at a time. Must not know which texts are worth it, nor where
files may lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from luce.protocol import (
    FreeSlot,
    Generate,
    InlineSnapshotFailed,
    LoadSlot,
    MemoryArgs,
    SaveSlot,
    SlotSaved,
    Snapshot,
    SnapshotPoint,
    SnapshotTaken,
)
from luce.supervisor.engine.client import EngineClient
from luce.supervisor.engine.generation import EngineDied, EngineError


@dataclass(frozen=True, slots=True)
class SavedText:
    n_tokens: int
    n_bytes: int


async def save_text(client: EngineClient, slot: int, tokens: Sequence[int], path: str) -> SavedText:
    """What the engine does not know of the text is computed first. Raises EngineError, EngineDied, or
    LocalProtocolError for a path that is no text."""
    point = SnapshotPoint(len(tokens), slot)
    command = Generate(prompt=tuple(tokens), n_generate=0, memory=MemoryArgs(snapshots=(point,)))
    try:
        async with await client.generate(command) as generation:
            async for event in generation:
                if isinstance(event, InlineSnapshotFailed):
                    raise EngineError(event.code, "the text's state could not be kept for the file")
        return await save_slot(client, slot, len(tokens), path)
    finally:
        await _free(client, slot)


async def save_ended(client: EngineClient, slot: int, request_id: int, path: str) -> SavedText:
    """The text of a request that has ended lately, its answer included; nothing is computed. Raises EngineError,
    EngineDied, or LocalProtocolError for a path that is no text."""
    try:
        taken = await client.post_call(Snapshot(slot, of=request_id))
        assert isinstance(taken, SnapshotTaken)
        return await save_slot(client, slot, taken.cur_pos, path)
    finally:
        await _free(client, slot)


async def save_slot(client: EngineClient, slot: int, n_tokens: int, path: str) -> SavedText:
    """What a slot holds. Raises as `save_ended`."""
    saved = await client.post_call(SaveSlot(slot, path))
    assert isinstance(saved, SlotSaved)
    return SavedText(n_tokens, saved.bytes)


async def load_text(client: EngineClient, slot: int, path: str) -> int:
    """Its length in tokens. From then on it is known like any other text, and makes room like any other. Raises
    EngineError, EngineDied, or LocalProtocolError for a path that is no text."""
    try:
        taken = await client.post_call(LoadSlot(slot, path))
        assert isinstance(taken, SnapshotTaken)
        return taken.cur_pos
    finally:
        await _free(client, slot)


async def _free(client: EngineClient, slot: int) -> None:
    with suppress(EngineError, EngineDied):  # it is empty where nothing came of it
        await client.post_call(FreeSlot(slot))
