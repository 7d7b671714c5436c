"""The arguments of calls as one object, whatever a model or a client wrote; and as templates take them.

llama.cpp reads arguments with a strict parser: it refuses NaN, 1e999 and lone surrogates, and takes a whole number of
more than 64 bits for another one. Arguments without any of that stay as they are spelled, and so does their prompt.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from luce.supervisor.http.prompts.history.characters import whole_escapes
from luce.supervisor.http.prompts.history.lenient_json import begun_json, lenient_json, read_json
from luce.supervisor.http.prompts.notes import say_once

ONLY_KEY = "arguments"
"""Of the object that stands for what is none."""

_MAX_LEVELS = 200
_MAX_SHOWN_LEVELS = 100
_INT64 = range(-(2**63), 2**63)

Message = Mapping[str, Any]


def arguments_text(arguments: Any) -> str:
    """As the client sent them: their text, or the text of the value in its place."""
    if isinstance(arguments, str):
        return arguments
    try:
        return json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    except (ValueError, RecursionError, TypeError):  # thousands of brackets, or of digits
        return json.dumps(_plain(arguments, _MAX_LEVELS), ensure_ascii=False)


def object_of(text: str) -> dict[str, Any]:
    """What the arguments say, in values that JSON has. Of a call that was cut off what is there; what is no object is
    the only member of one."""
    text = whole_escapes(text)
    if not text.strip():
        return {}
    try:
        value = read_json(text)
    except (ValueError, RecursionError):
        value = lenient_json(text)
        if value is None:
            begun = begun_json(text)
            value = begun if isinstance(begun, dict) else text
    if isinstance(value, str) and isinstance(inner := _inner(value), dict):
        value = inner
    if value is None:
        return {}
    value = value if isinstance(value, dict) else {ONLY_KEY: value}
    return {key: _plain(member, _MAX_LEVELS) for key, member in value.items()}


def readable_arguments(text: str) -> str:
    """JSON text of an object that llama.cpp reads as it is meant."""
    whole = whole_escapes(text)
    shown = _plain(object_of(whole), _MAX_SHOWN_LEVELS, is_shown=True)
    try:
        is_readable = json.loads(whole) == shown
    except (ValueError, RecursionError):
        is_readable = False
    if is_readable and whole == text:
        return text
    if text.strip():
        say_once("arguments of an earlier call that templates cannot read are mended in the prompt")
    return whole if is_readable else json.dumps(shown, ensure_ascii=False)


def with_readable_arguments(message: Message) -> Message:
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [_readable_call(call) for call in calls]} if calls else message


def _readable_call(call: Message) -> Message:
    function = call["function"]
    return {**call, "function": {**function, "arguments": readable_arguments(arguments_text(function["arguments"]))}}


def _inner(text: str) -> Any:
    """Some clients encode arguments twice."""
    try:
        return read_json(text)
    except (ValueError, RecursionError):
        return None


def _plain(value: Any, n_levels: int, *, is_shown: bool = False) -> Any:
    """With texts in place of what JSON does not have, and of what lies deeper. `is_shown`: by a template, which has
    whole numbers of 64 bits."""
    match value:
        case dict() | list() if n_levels == 0:
            return _text_of(value)
        case dict():
            return {key: _plain(member, n_levels - 1, is_shown=is_shown) for key, member in value.items()}
        case list():
            return [_plain(member, n_levels - 1, is_shown=is_shown) for member in value]
        case bool():
            return value
        case int() if is_shown and value not in _INT64:
            return _text_of(value)
        case float() if not math.isfinite(value):
            return _text_of(value)
        case _:
            return value


def _text_of(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return "…"
