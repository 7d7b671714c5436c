"""The keywords of one schema, checked and in one spelling: what is malformed is left out and told.

Makers of tools write types as their languages call them, OpenAPI's `nullable`, and counts as 1.0; all of that means
something. Knows neither places nor grammars.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_WORDS = {
    "dict": "object", "map": "object", "record": "object", "struct": "object", "mapping": "object",
    "list": "array", "tuple": "array", "set": "array", "sequence": "array",
    "str": "string", "text": "string", "char": "string", "varchar": "string", "uuid": "string",
    "int": "integer", "long": "integer", "int32": "integer", "int64": "integer", "bigint": "integer",
    "float": "number", "double": "number", "decimal": "number", "numeric": "number", "real": "number",
    "bool": "boolean", "none": "null", "nil": "null", "nonetype": "null",
}  # fmt: skip
_ANY_WORDS = frozenset({"any", "mixed", "unknown"})


class MalformedError(Exception):
    """A keyword's value is none that it can have."""


Tell = Callable[[str, str], None]
"""A keyword, and why it is not enforced."""


def read_keywords(schema: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """What constrains, and nothing else: `type` as a set, counts as integers, bounds as Decimal."""
    read: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword == "type":
            if (types := _types(value, tell)) is not None:
                read["type"] = types
        elif keyword in _UNSUPPORTED:
            tell(keyword, "it has no grammar here")
        elif (reader := _READERS.get(keyword)) is not None:
            try:
                read[keyword] = reader(value)
            except MalformedError as error:
                tell(keyword, str(error))
    if read.pop("nullable", False) and "type" in read:
        read["type"] |= {"null"}
        if "enum" in read:
            read["enum"] = [*read["enum"], None]
    for bound, excluded in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if (value := read.get(excluded)) is True and bound in read:  # draft 4
            read[excluded] = read.pop(bound)
        elif isinstance(value, bool):
            del read[excluded]
    return read


def is_type(value: Any) -> bool:
    """Whether it can stand behind `type`: one word or several, each of which means something."""
    told: list[str] = []
    _types(value, lambda _, reason: told.append(reason))
    return not told


def _types(value: Any, tell: Tell) -> frozenset[str] | None:
    types: set[str] = set()
    for word in value if isinstance(value, list) else [value]:
        if not isinstance(word, str):
            tell("type", "a type is a word")
            return None
        lower = word.lower()
        name = lower if lower in TYPES else _WORDS.get(lower)
        if name is None:
            if lower not in _ANY_WORDS:
                tell("type", f"{word[:40]!r} is no type")
            return None
        types |= {"integer", "number"} if name == "number" else {name}
    if not types:
        tell("type", "it lists no type")
        return None
    return frozenset(types)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or value < 0:
        raise MalformedError("it is no whole number")
    return int(value)


def _number(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise MalformedError("it is no number")
    return Decimal(repr(value))


def _divisor(value: Any) -> Decimal:
    number = _number(value)
    if number <= 0:
        raise MalformedError("it is not above 0")
    return number


def _limit(value: Any) -> Decimal | bool:
    return value if isinstance(value, bool) else _number(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise MalformedError("it is no text")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise MalformedError("it is neither true nor false")
    return value


def _schema(value: Any) -> Mapping[str, Any] | bool:
    if not isinstance(value, Mapping | bool):
        raise MalformedError("it is no schema")
    return value


def _schemas(value: Any) -> list[Any]:
    if not isinstance(value, list) or not value or not all(isinstance(part, Mapping | bool) for part in value):
        raise MalformedError("it is no list of schemas")
    return value


def _named_schemas(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise MalformedError("it is no object")
    for name, part in value.items():
        if not isinstance(part, Mapping | bool):
            raise MalformedError(f"{name[:40]!r} has no schema")
    return value


def _items(value: Any) -> Mapping[str, Any] | bool | list[Any]:
    return value if value == [] else _schemas(value) if isinstance(value, list) else _schema(value)


def _names(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise MalformedError("it is no list of names")
    return value


def _values(value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise MalformedError("it lists no values")
    return value


def _dependencies(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise MalformedError("it is no object")
    return {name: _names(part) if isinstance(part, list) else _schema(part) for name, part in value.items()}


_UNSUPPORTED = frozenset({"$dynamicRef", "$recursiveRef"})
_READERS: Mapping[str, Callable[[Any], Any]] = {
    "$ref": _text,
    "const": lambda value: value,
    "enum": _values,
    "nullable": _flag,
    "allOf": _schemas, "anyOf": _schemas, "oneOf": _schemas,
    "not": _schema, "if": _schema, "then": _schema, "else": _schema,
    "properties": _named_schemas, "patternProperties": _named_schemas,
    "additionalProperties": _schema, "propertyNames": _schema, "unevaluatedProperties": _schema,
    "required": _names, "minProperties": _count, "maxProperties": _count,
    "dependentRequired": _dependencies, "dependentSchemas": _dependencies, "dependencies": _dependencies,
    "items": _items, "prefixItems": _schemas, "additionalItems": _schema, "unevaluatedItems": _schema,
    "minItems": _count, "maxItems": _count, "uniqueItems": _flag,
    "contains": _schema, "minContains": _count, "maxContains": _count,
    "pattern": _text, "format": _text, "minLength": _count, "maxLength": _count,
    "minimum": _number, "maximum": _number, "exclusiveMinimum": _limit, "exclusiveMaximum": _limit,
    "multipleOf": _divisor,
}  # fmt: skip
