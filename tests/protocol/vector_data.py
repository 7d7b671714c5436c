"""The golden vectors as Python sees them: reading protocol/vectors/*.json, and values to and from their JSON.

The JSON's shape is described in protocol/vectors/README.md. Knows the codec's data, not its functions.
"""

from __future__ import annotations

import json
import struct
from dataclasses import MISSING, Field, fields, is_dataclass
from math import inf, isinf
from pathlib import Path
from typing import Any

from luce import protocol

ROOT = Path(__file__).resolve().parents[2]
VECTORS_DIR = ROOT / "protocol" / "vectors"

TYPE_NAMES: dict[str, type] = {
    "generate": protocol.Generate,
    "compress": protocol.Compress,
    "embed": protocol.Embed,
    "cancel": protocol.Cancel,
    "status": protocol.Status,
    "ping": protocol.Ping,
    "quit": protocol.Quit,
    "snapshot": protocol.Snapshot,
    "thin_snapshot": protocol.ThinSnapshot,
    "free_slot": protocol.FreeSlot,
    "free_scorer": protocol.FreeScorer,
    "list_slots": protocol.ListSlots,
    "save_slot": protocol.SaveSlot,
    "load_slot": protocol.LoadSlot,
    "park": protocol.Park,
    "unpark": protocol.Unpark,
    "clear": protocol.Clear,
    "describe_image": protocol.DescribeImage,
    "list_texts": protocol.ListTexts,
    "hold_text": protocol.HoldText,
    "forget_text": protocol.ForgetText,
    "watch_pages": protocol.WatchPages,
    "adopt_files": protocol.AdoptFiles,
    "list_files": protocol.ListFiles,
    "write_text": protocol.WriteText,
    "probe_text": protocol.ProbeText,
}
REPLY_TYPE_NAMES: dict[str, type] = {
    "generate_ok": protocol.GenerateOk,
    "compress_ok": protocol.CompressOk,
    "err": protocol.Err,
    "pong": protocol.Pong,
    "plain_ok": protocol.PlainOk,
    "parked": protocol.Parked,
    "unparked": protocol.Unparked,
    "embedding": protocol.Embedding,
    "cancelled": protocol.Cancelled,
    "prefill_progress": protocol.PrefillProgress,
    "logprobs": protocol.Logprobs,
    "prompt_logprobs": protocol.PromptLogprobs,
    "snapshot_taken": protocol.SnapshotTaken,
    "thin_taken": protocol.ThinTaken,
    "slot_freed": protocol.SlotFreed,
    "slot_list": protocol.SlotList,
    "slot_saved": protocol.SlotSaved,
    "inline_snapshot": protocol.InlineSnapshot,
    "inline_snapshot_failed": protocol.InlineSnapshotFailed,
    "status": protocol.StatusLine,
    "texts": protocol.TextsLine,
    "pages": protocol.PagesLine,
    "files": protocol.FilesLine,
    "adopted": protocol.Adopted,
    "probed": protocol.Probed,
    "ready": protocol.ReadyLine,
    "pool_size": protocol.PoolSize,
    "load_progress": protocol.LoadProgress,
    "out_of_memory": protocol.OutOfMemory,
    "image_described": protocol.ImageDescribed,
    "unknown": protocol.UnknownLine,
}


def read_vectors(name: str) -> list[dict[str, Any]]:
    vectors: list[dict[str, Any]] = json.loads((VECTORS_DIR / f"{name}.json").read_text("utf-8"))
    return vectors


def bytes_of(vector: dict[str, Any], key: str) -> bytes:
    """The bytes under `key`, or in hexadecimal under `hex` or `<key>_hex`."""
    for hex_key in ("hex", f"{key}_hex"):
        if hex_key in vector:
            return bytes.fromhex(vector[hex_key])
    text: str = vector[key]
    return text.encode("utf-8")


def command_to_json(command: protocol.Command) -> dict[str, Any]:
    (name,) = (name for name, type_ in TYPE_NAMES.items() if isinstance(command, type_))
    form = {"form": str(command.form)} if isinstance(command, protocol.Generate) else {}
    return {"type": name, **form, **_to_json(command)}


def _to_json(value: Any) -> Any:
    if is_dataclass(value):
        named = {field.name: (getattr(value, field.name), field) for field in fields(value)}
        return {name: _to_json(item) for name, (item, field) in named.items() if item != _default(field)}
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, float) and isinf(value):
        return f"{value}"
    return str(value) if isinstance(value, str) else value


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def reply_from_json(value: dict[str, Any]) -> protocol.Reply:
    arguments = {name: _from_json(item) for name, item in value.items() if name != "type"}
    if arguments.get("code") in set(protocol.ErrorCode):
        arguments["code"] = protocol.ErrorCode(arguments["code"])
    if "what" in arguments:
        arguments["what"] = protocol.Weights(arguments["what"])
    if "stop" in arguments:
        arguments["stop"] = protocol.StopReason(arguments["stop"])
    if "values" in arguments:
        arguments["values"] = struct.pack(f"<{len(arguments['values'])}f", *arguments["values"])
    if "speculation" in arguments:
        arguments["speculation"] = protocol.Speculation(**arguments["speculation"])
    if "parts" in arguments:
        arguments["parts"] = tuple(protocol.PinSpan(**part) for part in arguments["parts"])
    if "experts" in arguments:
        arguments["experts"] = protocol.ExpertReads(**arguments["experts"])
    reply: protocol.Reply = REPLY_TYPE_NAMES[value["type"]](**arguments)
    return reply


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_from_json, value))
    if isinstance(value, dict):
        return {name: _from_json(item) for name, item in value.items()}
    return {"inf": inf, "-inf": -inf}.get(value, value) if isinstance(value, str) else value
