"""Canonical messages: one form for all ways in which a client may spell the same message. Pure.

Clients parse what an answer brought them and write it anew: arguments with other spaces, escapes, numbers or order of
keys, or filled in where the model left them to their defaults; texts trimmed, ids of calls changed, `null` where
nothing was said. None of that changes what is meant. Where it is in doubt whether two spellings mean the same, their
forms differ. Knows no template and no ids of tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from luce.supervisor.http.prompts.history.characters import whole_escapes

Message = Mapping[str, Any]
Defaults = Mapping[str, Mapping[str, str]]
"""Of tools, by name: arguments that have one, and its canonical form."""

NO_DEFAULTS: Defaults = MappingProxyType({})

_SHORT_CHARACTERS = 2000

_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?")


class _Number(str):
    """A number's canonical form. Any two that stand for the same value have the same, whatever a float could hold."""

    __slots__ = ()


def canonical_text(text: str) -> str:
    """Clients trim what they show."""
    return text.strip()


def defaults_of(tools: Sequence[Mapping[str, Any]]) -> Defaults:
    """As their schemas have them."""
    found = {}
    for tool in tools:
        parameters = tool["function"].get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, dict) else None
        if not isinstance(properties, dict):
            continue
        own = {
            name: canonical_json(json.dumps(schema["default"]))
            for name, schema in properties.items()
            if isinstance(schema, dict) and "default" in schema
        }
        if own:
            found[tool["function"]["name"]] = own
    return found


def canonical_json(text: str, defaults: Mapping[str, str] = MappingProxyType({})) -> str:
    """Of a JSON text: the same for equal values. Objects are equal whatever the order of their keys, numbers if they
    are the same in mathematics. A text that is no JSON, or that readers of JSON take differently (a key that comes
    twice), stands for itself. A member that has its default counts as left out."""
    is_short = len(text) <= _SHORT_CHARACTERS and not defaults
    return _canonical_short(text) if is_short else _canonical(text, defaults)


@lru_cache(maxsize=4096)
def _canonical_short(text: str) -> str:
    """Each turn has the calls of all turns before."""
    return _canonical(text, {})


def _canonical(text: str, defaults: Mapping[str, str]) -> str:
    try:
        value = json.loads(
            whole_escapes(text),
            object_pairs_hook=_object,
            parse_int=_number,
            parse_float=_number,
            parse_constant=_no_constant,
        )
        if defaults and isinstance(value, dict):
            value = {key: member for key, member in value.items() if defaults.get(key) != "J" + _written(member)}
        return "J" + _written(value)
    except (ValueError, RecursionError):
        return "T" + text


def said(message: Message, content: str | None = None, defaults: Defaults = NO_DEFAULTS) -> bytes:
    """What an assistant's message says, apart from its reasoning and from the ids of its calls. `content` in place of
    the message's own. With `defaults` it is the same whether an argument that has its default is there or not."""
    text = message.get("content") or "" if content is None else content
    calls = message.get("tool_calls") or ()
    parts = []
    for call in calls:
        name = call["function"]["name"]
        parts += [name, canonical_json(arguments_of(call), defaults.get(name, {}))]
    return _encoded("assistant", message.get("name"), canonical_text(text), len(calls), *parts)


def heard(message: Message, call: int | str | None) -> bytes:
    """Anybody else's message. `call`: which one it answers, by its number in the conversation where that is known."""
    return _encoded(message.get("role"), message.get("name"), call, message.get("content"))


def reasoning_of(message: Message) -> str:
    return canonical_text(message.get("reasoning_content") or "")


def arguments_of(call: Mapping[str, Any]) -> str:
    """Some clients send a value in place of its text."""
    arguments = call["function"]["arguments"]
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _encoded(*parts: str | int | None) -> bytes:
    """No two lists of parts give the same, nor do several such behind one another: each says where it ends."""
    pieces = [b"%d " % len(parts)]
    for part in parts:
        if isinstance(part, str):
            text = part.encode("utf-8", "surrogatepass")
            pieces += (b"s%d " % len(text), text)
        else:
            pieces.append(b"- " if part is None else b"n%d " % part)
    return b"".join(pieces)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key comes twice")
    return members


def _number(token: str) -> _Number:
    found = _NUMBER.fullmatch(token)
    if found is None:
        raise ValueError(token)
    sign, whole, fraction, exponent = found.groups(default="")
    digits = (whole + fraction).lstrip("0")
    significant = digits.rstrip("0")
    power = int(exponent or 0) - len(fraction) + len(digits) - len(significant)
    return _Number(f"{sign}{significant}e{power}" if significant else f"{sign}0")


def _no_constant(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")


def _written(value: Any) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        members = (f"{json.dumps(key)}:{_written(value[key])}" for key in sorted(value))
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value)
