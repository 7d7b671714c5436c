"""Whether a value of `const` or `enum` is one that the schema's other keywords allow. Pure; says what it did not look
at."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from luce.supervisor.text.schemas.documents import Place, SchemaDocument
from luce.supervisor.text.schemas.keywords import read_keywords

_MAX_DEPTH = 40
_LEADS = frozenset({"oneOf", "not", "if", "dependentRequired", "dependentSchemas", "dependencies"})
_NOT_LOOKED_AT = frozenset({"contains", "uniqueItems", "additionalItems", "unevaluatedItems"})
_NOT_LOOKED_AT |= {"patternProperties", "propertyNames", "unevaluatedProperties"}
FitsAt = Callable[..., bool]


def type_of(value: Any) -> str:
    """A number that is whole is an integer, however it is written."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return bool(one == other)


def fits(value: Any, place: Place, document: SchemaDocument, unknown: set[str], depth: int = 0) -> bool:
    """`unknown` gets the keywords that were not looked at. What leads to other schemas is the caller's at depth 0."""
    schema = place.schema
    if isinstance(schema, bool):
        return schema
    words = read_keywords(schema, lambda *_: None)
    unknown |= words.keys() & (_NOT_LOOKED_AT if isinstance(value, list | dict) else set())

    def fits_at(inner: Any, *path: str | int) -> bool:
        return fits(inner, place.at(*path), document, unknown, depth + 1)

    if depth > 0 and not _leads_fit(value, words, place, document, unknown, depth, fits_at):
        return False
    return fits_words(value, words) and _parts_fit(value, words, fits_at)


def _leads_fit(
    value: Any,
    words: Mapping[str, Any],
    place: Place,
    document: SchemaDocument,
    unknown: set[str],
    depth: int,
    fits_at: FitsAt,
) -> bool:
    """What leads to other schemas for the same value."""
    unknown |= words.keys() & _LEADS
    if depth > _MAX_DEPTH:
        unknown.add("$ref")
        return True
    if "$ref" in words:
        target = document.find(words["$ref"], place.base)
        if target is not None and not fits(value, target, document, unknown, depth + 1):
            return False
    if not all(fits_at(value, "allOf", number) for number in range(len(words.get("allOf", ())))):
        return False
    branches = range(len(words.get("anyOf", ())))
    return not branches or any(fits_at(value, "anyOf", number) for number in branches)


def fits_words(value: Any, words: Mapping[str, Any]) -> bool:
    """Whether the keywords that hold no schemas allow it."""
    if "type" in words and type_of(value) not in words["type"]:
        return False
    if "const" in words and not same(value, words["const"]):
        return False
    if "enum" in words and not any(same(value, listed) for listed in words["enum"]):
        return False
    if isinstance(value, str):
        return _text_fits(value, words)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number_fits(Decimal(repr(value)), words)
    if isinstance(value, list):
        return bool(words.get("minItems", 0) <= len(value) <= words.get("maxItems", len(value)))
    if isinstance(value, dict):
        n = len(value)
        is_counted = words.get("minProperties", 0) <= n <= words.get("maxProperties", n)
        return bool(is_counted and value.keys() >= set(words.get("required", ())))
    return True


def matches(pattern: str, text: str) -> bool | None:
    """None: nobody knows; the pattern is none of Python's."""
    try:
        return re.search(pattern.replace("\\Z", "$").replace("(?<", "(?P<"), text, re.ASCII) is not None
    except (re.error, OverflowError, RecursionError):
        return None


def _text_fits(text: str, words: Mapping[str, Any]) -> bool:
    if not words.get("minLength", 0) <= len(text) <= words.get("maxLength", len(text)):
        return False
    return "pattern" not in words or matches(words["pattern"], text) is not False


def _number_fits(number: Decimal, words: Mapping[str, Any]) -> bool:
    return bool(
        words.get("minimum", number) <= number <= words.get("maximum", number)
        and not ("exclusiveMinimum" in words and number <= words["exclusiveMinimum"])
        and not ("exclusiveMaximum" in words and number >= words["exclusiveMaximum"])
        and not ("multipleOf" in words and number % words["multipleOf"] != 0)
    )


def _parts_fit(value: Any, words: Mapping[str, Any], fits_at: FitsAt) -> bool:
    if isinstance(value, dict):
        properties = words.get("properties", {})
        return all(
            fits_at(part, "properties", name)
            if name in properties
            else "additionalProperties" not in words or fits_at(part, "additionalProperties")
            for name, part in value.items()
        )
    if isinstance(value, list) and isinstance(words.get("items", []), Mapping | bool):
        first = len(words.get("prefixItems", ()))
        return all(
            fits_at(part, "prefixItems", number) if number < first else fits_at(part, "items")
            for number, part in enumerate(value)
            if number < first or "items" in words
        )
    return True
