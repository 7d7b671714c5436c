"""Whatever a grammar accepts, its schema allows, unless a keyword was told not to be enforced. The judge is the
`jsonschema_rs` package; texts are drawn from the grammars."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.supervisor.text.schemas import compile_schema
from tests.gbnf import Grammar

NAMES = st.sampled_from(["a", "b", "ab", 'q"'])
NUMBERS = st.sampled_from([0, 1, -1, 5, 10, 99, 100, 105, -7, 2.5, -0.25, 3.75, 1000, 12345])
VALUES = st.sampled_from([None, True, False, 0, 1, -1, 2.5, "a", "ab", "", [], [1], {}, {"a": 1}, "b\n"])
PATTERNS = st.sampled_from(
    [
        "^a+$",
        r"\d",
        "^[^a]$",
        "^.{1,3}$",
        "^(a|b)*c?$",
        "a|^b",
        "^a-[0-9]{2,3}$",
        "^(?:x|yz){2}$",
        r"[\"\\]",
        "é+",
        r"^a\.b+$",
    ]
)
TYPES = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null", ["string", "null"]])
SMALL = st.integers(0, 4)


def _keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    listed = st.lists(inner, min_size=1, max_size=3)
    anything: dict[str, st.SearchStrategy[Any]] = {
        "type": TYPES, "enum": st.lists(VALUES, min_size=1, max_size=4), "const": VALUES,
        "anyOf": listed, "allOf": listed, "oneOf": listed, "not": inner,
        "minimum": NUMBERS, "maximum": NUMBERS, "exclusiveMinimum": NUMBERS, "exclusiveMaximum": NUMBERS,
        "multipleOf": st.sampled_from([1, 2, 3, 5, 7, 10, 0.5]),
        "pattern": PATTERNS, "minLength": SMALL, "maxLength": SMALL,
        "format": st.sampled_from(["date", "ipv4", "uuid"]),
        "properties": st.dictionaries(NAMES, inner, max_size=3), "required": st.lists(NAMES, max_size=2, unique=True),
        "additionalProperties": inner,
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$"]), inner, max_size=2),
        "propertyNames": st.sampled_from([{"pattern": "^[a-c]+$"}, {"enum": ["a", "z"]}, {"maxLength": 1}]),
        "minProperties": SMALL, "maxProperties": SMALL, "unevaluatedProperties": inner,
        "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=2),
        "dependentSchemas": st.dictionaries(NAMES, inner, max_size=2),
        "items": inner, "prefixItems": listed, "minItems": SMALL, "maxItems": SMALL, "uniqueItems": st.booleans(),
        "contains": inner, "unevaluatedItems": inner,
    }  # fmt: skip
    condition = st.fixed_dictionaries({"if": inner, "then": inner, "else": inner})
    some = st.lists(st.sampled_from(sorted(anything)), max_size=4, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: anything[name] for name in names})
    )
    return st.one_of(some, some, some, condition)


SCHEMAS = st.recursive(st.one_of(st.booleans(), TYPES.map(lambda name: {"type": name})), _keywords, max_leaves=12)


def check(schema: Any, seed: int) -> None:
    compiled = compile_schema(schema)
    if compiled.notes:
        return
    grammar = Grammar.read(compiled.grammar)
    judge = jsonschema_rs.Draft202012Validator(schema)
    chance = random.Random(seed)
    for _ in range(4):
        text = grammar.sample(chance, max_steps=100)
        errors = [error.message for error in judge.iter_errors(json.loads(text))]
        assert not errors, (text, errors)


@given(SCHEMAS, st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_what_is_accepted_is_allowed(schema: Any, seed: int) -> None:
    check(schema, seed)


def test_what_is_accepted_is_allowed_in_full(full: bool) -> None:
    if not full:
        pytest.skip("--full draws 10,000 schemas")
    settings(max_examples=10_000, deadline=None)(given(SCHEMAS, st.integers(0, 2**32))(check))()
