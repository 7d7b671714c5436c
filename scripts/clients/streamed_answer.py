"""An answer's events -> the messages that a client may send back for it, each API in its own words.

Pure. Knows no server and no client. Takes the one object of an answer that was not streamed for an event, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

Event = dict[str, Any]


def answer_of(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Empty where nothing came of it."""
    for event in events:
        if isinstance(event.get("response"), dict) and event["response"].get("output"):
            return list(event["response"]["output"])
        if event.get("output"):
            return list(event["output"])
    if any(event.get("choices") for event in events):
        return [_chat_message(events)]
    blocks = _blocks(events)
    return [{"role": "assistant", "content": blocks}] if blocks else []


def _chat_message(events: Iterable[Event]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: list[dict[str, Any]] = []
    for event in events:
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or choice.get("message") or {}
            for name in ("content", "reasoning_content"):
                if delta.get(name):
                    message[name] = message.get(name, "") + delta[name]
            for piece in delta.get("tool_calls") or ():
                function = piece.get("function") or {}
                if piece.get("id"):
                    empty = {"name": function["name"], "arguments": ""}
                    calls.append({"id": piece["id"], "type": "function", "function": empty})
                calls[-1]["function"]["arguments"] += function.get("arguments") or ""
    return message | ({"tool_calls": calls} if calls else {})


def _blocks(events: Iterable[Event]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    arguments: dict[int, str] = {}
    for event in events:
        if event.get("type") == "message":
            return list(event["content"])
        if event.get("type") == "content_block_start":
            blocks.append(dict(event["content_block"]))
        elif event.get("type") == "content_block_delta":
            number, delta = event["index"], event["delta"]
            for name in ("text", "thinking", "signature"):
                if name in delta:
                    blocks[number][name] = blocks[number].get(name, "") + delta[name]
            if "partial_json" in delta:
                arguments[number] = arguments.get(number, "") + delta["partial_json"]
    for number, text in arguments.items():
        blocks[number]["input"] = json.loads(text or "{}")
    return blocks
