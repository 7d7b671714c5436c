"""Schemas as grammars: what each keyword lets through, and what is told instead."""

from __future__ import annotations

import json
from typing import Any

import pytest

from luce.supervisor.text.schemas import compile_schema
from tests.gbnf import Grammar

INTEGERS = {"a": {"type": "integer"}, "b": {"type": "integer"}}


def accepted(schema: Any, *values: Any) -> list[bool]:
    compiled = compile_schema(schema)
    assert compiled.notes == []
    grammar = Grammar.read(compiled.grammar)
    return [grammar.accepts(json.dumps(value, ensure_ascii=False)) for value in values]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "object", "properties": INTEGERS, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
         [{"a": 1}, {"b": 2}], [13000, False, {}, {"a": 1, "b": 2}]),
        ({"properties": {"k": True, "x": {"type": "integer"}}, "required": ["k"],
          "anyOf": [{"required": ["x"]}, {"properties": {"y": {"type": "null"}}}]},
         [{"k": 1, "x": 2}, {"k": 1, "y": None}], [{"x": 2}, {"k": 1, "x": "2"}]),
        ({"allOf": [{"properties": {"a": {"minimum": 2}}, "required": ["a"]}, {"properties": {"a": {"maximum": 4}}}]},
         [{"a": 3}], [{"a": 1}, {"a": 5}, {}]),
        ({"type": "object", "required": ["k"]}, [{"k": 1}, {"k": 1, "z": 2}], [{}, {"z": 2}]),
        ({"type": "object", "properties": {"a": {}}, "required": ["k"]}, [{"k": 1}, {"a": 1, "k": 1}], [{"a": 1}]),
        ({"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
         [[], ["x"], ["x", 1]], [[1], ["x", 1, 2]]),
        ({"items": [{"type": "string"}], "additionalItems": {"type": "null"}}, [["x"], ["x", None]], [["x", 1]]),
        ({"type": "array", "items": {"enum": ["x", "y"]}, "uniqueItems": True}, [["y", "x"], []], [["x", "x"]]),
        ({"type": "array", "contains": {"const": 1}}, [[1], [2, 1, 3]], [[], [2]]),
        ({"type": "number", "minimum": -1.5, "exclusiveMaximum": 2.25},
         [-1.5, -1.49, 0, 2, 2.2, 2.2499], [-1.51, -2, 2.25, 2.26, 3]),
        ({"type": "integer", "minimum": 105}, [105, 110, 1000, 99999], [104, 5, 15, -105]),
        ({"type": "integer", "maximum": 2**64}, [2**64, -1, 0], [2**64 + 1]),
        ({"type": "integer", "minimum": -5, "maximum": 12, "multipleOf": 5}, [-5, 0, 10], [1, 15, -10]),
        ({"type": "integer", "multipleOf": 7}, [0, 7, -14, 700], [1, 13, -15]),
        ({"type": "number", "multipleOf": 0.01}, [1, 1.25, -0.5], [1.255]),
        ({"enum": ["x", 1, None, True], "type": ["string", "boolean"]}, ["x", True], [1, None]),
        ({"enum": [1, 2, 3], "minimum": 2}, [2, 3], [1]),
        ({"type": "object", "minProperties": 1, "maxProperties": 1, "properties": INTEGERS},
         [{"a": 1}, {"b": 1}], [{}, {"a": 1, "b": 2}]),
        ({"type": "object", "patternProperties": {"^x-": {"type": "integer"}}}, [{"x-a": 1}], [{"x-a": "1"}]),
        ({"type": "object", "additionalProperties": {"type": "integer"}, "propertyNames": {"pattern": "^[a-c]$"}},
         [{"a": 1}], [{"d": 1}, {"a": "1"}]),
        ({"type": "object", "properties": INTEGERS, "dependentRequired": {"a": ["b"]}},
         [{"b": 1}, {"a": 1, "b": 1}, {}], [{"a": 1}]),
        ({"type": "object", "properties": {"k": {"enum": ["x", "y"]}, "n": {"type": "integer"}}, "required": ["k"],
          "if": {"properties": {"k": {"const": "x"}}}, "then": {"required": ["n"]}},
         [{"k": "y"}, {"k": "x", "n": 1}], [{"k": "x"}]),
        ({"not": {"type": ["object", "array"]}}, ["x", 1, None], [{}, []]),
        ({"type": "string", "not": {"enum": ["a", "ab"]}}, ["", "abc", "b"], ["a", "ab"]),
        ({"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^[a-z]*$"}, ["ab", "abc"], ["a", "abcd", "AB"]),
        ({"type": "string", "format": "date"}, ["2024-02-29", "2023-12-31"], ["2023-02-29", "2023-13-01"]),
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True},
         [{"a": 1}, {"b": "x"}, {"a": 1, 'a"\\': 2}], [{"a": "x"}]),
        ({"type": "integer", "nullable": True}, [1, None], ["x"]),
        ({"type": "INT"}, [1], [1.5]),
        ({"type": ["str", "Float"]}, ["x", 1.5], [None]),
        ({"type": "string", "maxLength": 5000}, ["x" * 5000, "x" * 2345, ""], ["x" * 5001]),
        ({"type": "string", "minLength": 1.0, "maxLength": 2147483648}, ["x"], [""]),
    ],
)  # fmt: skip
def test_a_keyword_lets_through_what_it_says(schema: Any, good: list[Any], bad: list[Any]) -> None:
    assert accepted(schema, *good) == [True] * len(good)
    assert accepted(schema, *bad) == [False] * len(bad)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"properties": {"n": {"type": "integer"}, "child": {"$ref": "#"}}, "required": ["n"]},
         {"n": 1, "child": {"n": 2, "child": {"n": 3}}}, {"n": 1, "child": {"child": {"n": 1}}}),
        ({"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"type": "integer"}}}, 1, "x"),
        ({"$id": "http://x.org/s.json", "items": {"$ref": "http://x.org/s.json"}, "type": "array"}, [[], [[]]], [1]),
        ({"$ref": "#here", "$defs": {"x": {"$anchor": "here", "type": "null"}}}, None, 1),
        ({"$ref": "#/$defs/n", "maximum": 3, "$defs": {"n": {"type": "integer"}}}, 3, 4),
    ],
)  # fmt: skip
def test_references_lead_to_what_they_name(schema: Any, good: Any, bad: Any) -> None:
    assert accepted(schema, good, bad) == [True, False]


@pytest.mark.parametrize(
    ("schema", "pointer", "keyword"),
    [
        ({"properties": {"a": {"type": "string", "minLength": 2001}}}, "/properties/a", "minLength"),
        ({"properties": {"a": {"type": "array", "minItems": 3000}}}, "/properties/a", "minItems"),
        ({"properties": {"a/b": {"pattern": "^[a-z]{2001}$"}}}, "/properties/a~1b", "pattern"),
        ({"properties": {"a": {"pattern": "^(?=x)"}}}, "/properties/a", "pattern"),
        ({"properties": {"a": {"pattern": r"\p{L}"}}}, "/properties/a", "pattern"),
        ({"properties": {"a": {"pattern": r"\bx"}}}, "/properties/a", "pattern"),
        ({"properties": {"a": {"type": "file"}}}, "/properties/a", "type"),
        ({"properties": {"a": {"enum": []}}}, "/properties/a", "enum"),
        ({"properties": None}, "", "properties"),
        ({"properties": {"a": {"$ref": "#/nowhere"}}}, "/properties/a", "$ref"),
        ({"properties": {"a": {"allOf": [{"type": "string"}, {"type": "number"}]}}}, "/properties/a", "type"),
        ({"properties": {"a": {"type": "integer", "minimum": 5, "maximum": 1}}}, "/properties/a", "minimum"),
        ({"properties": {"a": {"const": 1, "type": "string"}}}, "/properties/a", "const"),
        ({"type": "object", "additionalProperties": False, "required": ["x"]}, "", "false"),
        ({"items": {"type": "string"}, "uniqueItems": True}, "", "uniqueItems"),
        ({"oneOf": [{"minimum": 1}, {"multipleOf": 3}]}, "", "oneOf"),
    ],
)
def test_what_has_no_grammar_is_told_with_its_place(schema: Any, pointer: str, keyword: str) -> None:
    compiled = compile_schema(schema)
    assert [(note.pointer, note.keyword) for note in compiled.notes] == [(pointer, keyword)]
    assert compiled.notes[0].reason


def test_one_keyword_that_is_left_out_leaves_the_others() -> None:
    parts = {"a": {"type": "string", "pattern": "(?!x)", "maxLength": 2}, "b": {"enum": ["x"]}}
    compiled = compile_schema({"type": "object", "properties": parts, "required": ["a", "b"]})
    grammar = Grammar.read(compiled.grammar)
    assert grammar.accepts('{"a": "yy", "b": "x"}')
    assert not grammar.accepts('{"a": "yyy", "b": "x"}')
    assert not grammar.accepts('{"a": "yy", "b": "y"}')


def test_an_object_is_never_something_else() -> None:
    for schema in (
        {},
        {"type": "string"},
        {"anyOf": [{"type": "null"}]},
        {"allOf": [{"type": "string"}]},
        {"enum": [1]},
    ):
        compiled = compile_schema(schema, of_object=True)
        grammar = Grammar.read(compiled.grammar)
        assert grammar.accepts("{}")
        assert not any(map(grammar.accepts, ("1", '"x"', "null", "[]")))
        assert compiled.shape["type"] == "object"


def test_a_definition_that_needs_itself_ends() -> None:
    node = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}
    compiled = compile_schema({"$ref": "#/$defs/n", "$defs": {"n": node}})
    assert [note.keyword for note in compiled.notes] == ["$ref"]
    assert Grammar.read(compiled.grammar).accepts('{"n": {"n": {}}}')


def test_a_schema_of_any_size_or_depth_is_answered() -> None:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(300):
        deep = {"type": "array", "items": deep}
    wide = {"properties": {f"p{number}": {"type": "integer", "minimum": number} for number in range(600)}}
    bomb: dict[str, Any] = {"anyOf": [{"type": "string"}] * 3}
    for _ in range(12):
        bomb = {"allOf": [{"anyOf": [bomb, {"type": "null"}]}, {"anyOf": [{"minimum": 1}, {"maximum": 2}]}]}
    for schema in (deep, wide, bomb):
        assert len(compile_schema(schema).grammar) < 1 << 21


def test_shapes_name_types_and_properties_for_formats_of_their_own() -> None:
    schema = {"properties": {"a": {"type": ["string", "null"]}, "b": {"enum": [1, 2]}}, "required": ["b"]}
    shape = compile_schema(schema, of_object=True).shape
    assert shape["required"] == ["b"]
    assert [part["type"] for part in shape["properties"]["a"]["anyOf"]] == ["string", "null"]
    assert shape["properties"]["b"]["type"] == "integer"
