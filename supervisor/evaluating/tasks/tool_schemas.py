"""Whether a call is what a tool's schema asks for: JSON, an object, with what is required and nothing unknown, each of
its type. Pure; knows as much of JSON schema as tools of agents use.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from luce.supervisor.evaluating.question import Call, Message, Reply

# What stands in a text where a call came out as words.
_MARKUP = ("<tool_call", "</tool_call", "<tool_response", "<function=", "[TOOL_CALLS]", "<|python_tag|>", "<|tool_call")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,),
    "object": (dict,), "null": (type(None),),
}  # fmt: skip


def arguments_of(call: Call) -> dict[str, Any] | None:
    """None: they are no JSON object."""
    try:
        read = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None


def is_well_formed(reply: Reply, tools: Sequence[Message]) -> bool:
    """Whether every call can be run, and none stands in the text. No call at all is well formed too."""
    if any(mark in reply.text for mark in _MARKUP):
        return False
    known = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    return all(call.name in known and _fits(call, known[call.name]) for call in reply.calls)


def _fits(call: Call, schema: Mapping[str, Any]) -> bool:
    arguments = arguments_of(call)
    if arguments is None:
        return False
    properties = schema.get("properties") or {}
    if not set(schema.get("required") or ()) <= arguments.keys():
        return False
    if schema.get("additionalProperties") is not True and not arguments.keys() <= properties.keys():
        return False
    return all(_is_of(value, properties.get(name) or {}) for name, value in arguments.items())


def _is_of(value: object, schema: Mapping[str, Any]) -> bool:
    if "enum" in schema and value not in schema["enum"]:
        return False
    kinds = schema.get("type", ())
    types = tuple(t for kind in ([kinds] if isinstance(kinds, str) else kinds) for t in _TYPES.get(kind, (object,)))
    if isinstance(value, bool) and types and bool not in types and object not in types:
        return False  # to Python it is an integer
    return not types or isinstance(value, types)
