"""Schemas for what another schema does not allow, for `not`, `if` and `oneOf`. Pure.

Only where that is exact. A property that is forbidden is one of schema `false`; it closes no object (OPEN).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from luce.supervisor.text.schemas.keywords import TYPES, read_keywords

OPEN = "$luce-open"
"""Keyword of schemas made here: that they name properties does not say that there are no others."""
EXCLUDED = "$luce-excluded"
"""Keyword of schemas made here: values that are not allowed."""

_BOUNDS = {
    "minimum": "exclusiveMaximum",
    "exclusiveMinimum": "maximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMaximum": "minimum",
}
_COUNTS = {
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
}
_ANNOTATIONS = frozenset({"title", "description", "default", "examples", "$comment", "deprecated", "$schema"})


def without_property(name: str) -> dict[str, Any]:
    return {"properties": {name: False}, OPEN: True}


def negated(schema: Mapping[str, Any] | bool) -> Mapping[str, Any] | bool | None:
    """None: it cannot be said exactly."""
    if isinstance(schema, bool):
        return not schema
    told: list[str] = []
    words = read_keywords(schema, lambda keyword, _: told.append(keyword))
    if told or not schema.keys() <= words.keys() | _ANNOTATIONS:
        return None
    ways: list[Any] = []
    for keyword, value in words.items():
        way = _negated_keyword(keyword, value)
        if way is None:
            return None
        ways += way
    if not ways:
        return False
    return ways[0] if len(ways) == 1 else {"anyOf": ways}


def _negated_keyword(keyword: str, value: Any) -> list[Any] | None:
    """Schemas of which one holds; None: it cannot be said."""
    if keyword in _BOUNDS:
        return [{"type": "number", _BOUNDS[keyword]: _plain(value)}]
    if keyword in _COUNTS:
        kind, other, step = _COUNTS[keyword]
        return [{"type": kind, other: value + step}] if value + step >= 0 else []
    if keyword in {"anyOf", "allOf"}:
        parts = [negated(part) for part in value]
        if None in parts:
            return None
        return parts if keyword == "allOf" else [{"allOf": parts}]
    make = _NEGATED.get(keyword)
    return None if make is None else make(value)


def _negated_types(types: frozenset[str]) -> list[Any] | None:
    if types & {"integer", "number"} == {"integer"}:
        return None  # a number that is not whole has no grammar
    others = [name for name in TYPES if name not in types]
    return [{"type": others}] if others else []


def _negated_properties(properties: Mapping[str, Any]) -> list[Any] | None:
    ways: list[Any] = []
    for name, part in properties.items():
        other = negated(part)
        if other is None:
            return None
        if other is not False:
            ways.append({"type": "object", "properties": {name: other}, "required": [name], OPEN: True})
    return ways


def _plain(value: Any) -> int | float:
    return int(value) if value == int(value) else float(value)


_NEGATED: Mapping[str, Callable[[Any], list[Any] | None]] = {
    "type": _negated_types,
    "const": lambda value: [{EXCLUDED: [value]}],
    "enum": lambda values: [{EXCLUDED: list(values)}],
    "required": lambda names: [{"type": "object", **without_property(name)} for name in names],
    "properties": _negated_properties,
    "not": lambda schema: [schema],
}
