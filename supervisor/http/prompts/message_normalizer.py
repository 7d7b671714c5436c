"""Normaliser: messages as a template should see them, so that the same conversation is the same prompt each time.

Clients write volatile things first and the same text in two shapes; a prefix survives only if neither shows. Works on
neutral messages (answer_request.ChatPrompt). Pure: knows no template and no vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from luce.supervisor.http.prompts.message_images import image_of
from luce.supervisor.text.image_markers import image_marker, is_image_marker

CLEARED_REASONING = "has_cleared_reasoning"
"""Key of a message whose reasoning is to stay away, unlike one that the client has only left out: that may come back
from the answer that the message was."""

_KEPT = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name", CLEARED_REASONING)
_VOLATILE_LINE = re.compile(r"\A\s*x-anthropic-billing-header:[^\n]*(\n|\Z)\s*")
"""Claude Code's first line of its system text: a part of it is new with each session, and no part of it is meant for
the model."""


_SCHEMAS_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_SCHEMA_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SCHEMAS = frozenset({"items", "contains", "propertyNames", "not", "if", "then", "else"})
_NEVER_NULL = frozenset({"type", "properties", "required", "items", "enum", "description"})
_MAX_LEVELS = 120
"""Of a tool's parameters in a prompt: libluce_text renders no JSON of more than 128. No grammar is as deep, so that
the rest is told as not enforced."""


class UnreadableContentError(ValueError):
    """A message's content is neither text nor parts of text."""


def normalise_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Contents as one text each; no marks for caches, no volatile lines. Raises UnreadableContentError."""
    return [message for message in map(_message, messages) if message is not None]


def normalise_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a template shows of tools, and nothing else."""
    return [_tool(tool) for tool in tools]


def normalise_schema(schema: Any) -> Any:
    """A JSON schema as a template can show it: without `true` and `false` in the place of schemas, and without null in
    the place of keywords. What answers are held to is made of the schema itself (enforced_schemas)."""
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: _part_of_schema(key, value) for key, value in schema.items() if value is not None or key not in _NEVER_NULL
    }


def _part_of_schema(key: str, value: Any) -> Any:
    if key in _SCHEMAS_BY_NAME and isinstance(value, Mapping):
        return {name: normalise_schema(part) for name, part in value.items()}
    if (key in _SCHEMA_LISTS or key == "items") and isinstance(value, list):
        return [normalise_schema(part) for part in value]
    return normalise_schema(value) if key in _SCHEMAS else value


def _message(message: Mapping[str, Any]) -> dict[str, Any] | None:
    kept = {key: message[key] for key in _KEPT if message.get(key) is not None}
    is_system = kept.get("role") in {"system", "developer"}
    parts = content_texts(kept.get("content"))
    if is_system:
        shown = [_VOLATILE_LINE.sub("", part) for part in parts]
        if shown != parts:
            parts = [part for part in shown if part]
            if not parts:
                return None
    kept["content"] = _joined(parts)
    if "tool_calls" in kept:
        if kept["tool_calls"]:
            kept["tool_calls"] = [_tool_call(call) for call in kept["tool_calls"]]
        else:
            del kept["tool_calls"]
    return kept


def _joined(parts: Sequence[str]) -> str:
    """Around an image the model's projector says what stands, as where llama.cpp puts messages together."""
    text = ""
    after_image = True
    for part in parts:
        is_image = is_image_marker(part)
        text += part if after_image or is_image else f"\n{part}"
        after_image = is_image
    return text


def content_texts(content: Any) -> list[str]:
    """The parts of a message's content, images as their markers. Raises UnreadableContentError, or ApiError."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, Sequence):
        raise UnreadableContentError("a message's content is a text or a list of parts")
    texts = []
    for part in content:
        if (image := image_of(part)) is not None:
            texts.append(image_marker(image.name) if image.is_readable else image.words())
            continue
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise UnreadableContentError(f"content of type {kind!r} cannot be read: this model takes text only")
        texts.append(text)
    return texts


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    return {
        "id": call.get("id") or "",
        "type": "function",
        "function": {"name": function.get("name") or "", "arguments": function.get("arguments") or "{}"},
    }


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool.get("function") or {}
    shown = {key: function[key] for key in ("name", "description", "parameters") if function.get(key) is not None}
    if "parameters" in shown:
        shown["parameters"] = _of_levels(normalise_schema(shown["parameters"]), _MAX_LEVELS)
    return {"type": "function", "function": shown}


def _of_levels(value: Any, n: int) -> Any:
    """Empty, what is nested deeper."""
    if isinstance(value, Mapping):
        return {key: _of_levels(part, n - 1) for key, part in value.items()} if n > 1 else {}
    if isinstance(value, list):
        return [_of_levels(part, n - 1) for part in value] if n > 1 else []
    return value
