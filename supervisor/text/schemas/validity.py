"""Whether a value of `const` or `enum` is one that the schema's other keywords allow. Pure; says yes where it cannot
tell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from luce.supervisor.text.schemas.documents import Place, SchemaDocument
from luce.supervisor.text.schemas.keywords import read_keywords

_MAX_DEPTH = 40


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


def fits(value: Any, place: Place, document: SchemaDocument, depth: int = 0) -> bool:
    schema = place.schema
    if isinstance(schema, bool) or depth > _MAX_DEPTH:
        return schema is not False
    words = read_keywords(schema, lambda *_: None)

    def fits_at(inner: Any, *path: str | int) -> bool:
        return fits(inner, place.at(*path), document, depth + 1)

    if "$ref" in words:
        target = document.find(words["$ref"], place.base)
        if target is not None and not fits(value, target, document, depth + 1):
            return False
    if any(not fits_at(value, "allOf", number) for number in range(len(words.get("allOf", ())))):
        return False
    for keyword in ("anyOf", "oneOf"):
        if keyword in words:
            n_fitting = sum(fits_at(value, keyword, number) for number in range(len(words[keyword])))
            if n_fitting == 0 or (keyword == "oneOf" and n_fitting > 1):
                return False
    if "not" in words and isinstance(words["not"], bool) and words["not"]:
        return False
    return fits_words(value, words) and _parts_fit(value, words, fits_at)


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


def _parts_fit(value: Any, words: Mapping[str, Any], fits_at: Any) -> bool:
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
