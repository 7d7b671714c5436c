"""Schemas over HTTP, in each API, streamed and not: what holds an answer, what is told that does not, and what strict
refuses. Inputs of public bug reports."""

from __future__ import annotations

import logging
import re
from typing import Any

import httpx2 as httpx
import jsonschema_rs
import pytest

from tests.http.asking import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    Answer,
    answered,
    answered_by,
    ask,
    demanded,
    in_each_api,
    in_each_talking_api,
    question,
    strict_json,
    tools,
)
from tests.http.serving import Server

GOOD = {"type": "object", "properties": {"c": {"enum": ["x", "y"]}}, "required": ["c"]}
RECURSIVE = {"type": "object", "properties": {"n": {"type": "integer"}, "child": {"$ref": "#"}}, "required": ["n"]}
ENFORCED: dict[str, dict[str, Any]] = {
    "const": {"type": "object", "properties": {"kind": {"const": "circle"}}, "required": ["kind"]},
    "properties beside oneOf": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "required beside anyOf": {
        "properties": {"k": {"type": "integer"}},
        "required": ["k"],
        "anyOf": [{"required": ["z"]}, {"required": ["y"]}],
    },
    "any characters": {
        "type": "object",
        "properties": {"g": {"type": "string", "pattern": "^.*$", "maxLength": 9}},
        "required": ["g"],
    },
    "required of what is not among the properties": {
        "type": "object",
        "properties": {"g": {"type": "string", "pattern": r"^\d{2}-\w$"}},
        "required": ["g", "h"],
    },
    "pointers with escapes": {
        "type": "object",
        "properties": {"p": {"$ref": "#/$defs/a~1b%20c"}},
        "required": ["p"],
        "$defs": {"a/b c": {"enum": [7, 8]}},
    },
    "its own name": {
        "$id": "https://example.com/tree",
        "type": "object",
        "properties": {"n": {"const": 1}, "child": {"$ref": "https://example.com/tree"}},
        "required": ["n"],
        "maxProperties": 1,
    },
    "a definition that needs itself": {
        "type": "object",
        "properties": {"a": {"const": 1}, "p": {"$ref": "#/$defs/endless"}},
        "required": ["a"],
        "$defs": {"endless": {"type": "object", "properties": {"p": {"$ref": "#/$defs/endless"}}, "required": ["p"]}},
    },
}
TEXT, PAIR = {"type": "string"}, {"type": "array", "minItems": 2, "maxItems": 2}
PARTS: dict[str, tuple[dict[str, Any], str | None]] = {
    "digits": ({"type": "string", "pattern": r"^\d{3}$"}, None),
    "letters": ({"type": "string", "pattern": r"^\w{1,3}$"}, None),
    "an escape": ({"type": "string", "pattern": r"^a\!$"}, None),
    "what is not in a class": ({"type": "string", "pattern": "^[^a]{1,3}$"}, None),
    "a number's bounds": ({"type": "number", "minimum": 2.5, "maximum": 2.75}, None),
    "a list of so many": ({"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": False}, None),
    "a multiple": ({"type": "integer", "minimum": 0, "maximum": 99, "multipleOf": 7}, None),
    "so many properties": ({"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1}, None),
    "all different": ({**PAIR, "items": {"enum": [1, 2, 3]}, "uniqueItems": True}, None),
    "contains": ({**PAIR, "items": {"enum": [1, 2, 3]}, "contains": {"const": 2}}, "contains"),
    "dependents": (
        {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 1}}, "dependentRequired": {"a": ["b"]}},
        None,
    ),
    "a condition": (
        {
            "type": "object",
            "properties": {"a": {"enum": [1, 2]}, "b": {"const": 1}},
            "required": ["a"],
            "if": {"properties": {"a": {"const": 1}}},
            "then": {"required": ["b"]},
        },
        None,
    ),
    "looking ahead": ({"type": "string", "pattern": "^(?=x)", "maxLength": 9}, "pattern"),
    "a property of characters": ({"type": "string", "pattern": r"^\p{L}$", "maxLength": 9}, "pattern"),
    "bounds that cross": ({"type": "integer", "minimum": 3, "maximum": 2}, "minimum"),
    "two types at once": ({"allOf": [{"type": "string"}, {"type": "number"}]}, "type"),
}
ALL_PARTS = {
    "type": "object",
    "properties": {name: part for name, (part, _) in PARTS.items()},
    "required": list(PARTS),
    "additionalProperties": False,
}
ODD: dict[str, tuple[dict[str, Any], str | None]] = {
    "minLength": ({"type": "string", "minLength": 2001}, "minLength"),
    "minItems": ({"type": "array", "items": {"type": "null"}, "minItems": 3000}, "minItems"),
    "pattern": ({"type": "string", "pattern": "^[a-z]{2001}$"}, "pattern"),
    "maxItems": ({"type": "array", "items": {"type": "null"}, "maxItems": 9007199254740991}, None),
    "maxLength": ({"type": "string", "maxLength": 2147483648}, None),
    "a float": ({"type": "string", "minLength": 1.0}, None),
    "a long number": ({"type": "integer", "maximum": 18446744073709551616}, None),
    "any": ({"type": "any"}, None),
    "int": ({"type": "int"}, None),
    "float": ({"type": "float"}, None),
    "str": ({"type": "str"}, None),
    "dict": ({"type": "dict"}, None),
    "OBJECT": ({"type": "OBJECT"}, None),
    "file": ({"type": "file"}, "type"),
    "enum": ({"enum": []}, "enum"),
    "properties": ({"type": "object", "properties": None}, "properties"),
    "ref": ({"$ref": "#/$defs/nowhere"}, "$ref"),
}
UNANCHORED = ("[0-9]{3}", "^[0-9]{3}", "[0-9]{3}$", "^a|[0-9]$")
LOST = {"type": "object", "properties": {"g": {"type": "string", "pattern": "^(?=x)"}}, "required": ["g"]}


def value_of(answer: Answer) -> Any:
    if not answer.calls:
        return strict_json(answer.content)
    ((name, arguments),) = answer.calls
    assert name == "f"
    return arguments


def of_answer(path: str, schema: dict[str, Any], *, strict: bool = False, **fields: Any) -> dict[str, Any]:
    asked = "Here is JSON: " if path == COMPLETIONS else "Who are you?"
    return question(path, asked, **answered_by(path, schema, strict=strict), **fields)


def of_tool(path: str, schema: dict[str, Any], *, strict: bool = False, **fields: Any) -> dict[str, Any]:
    offered = tools(path, {"f": schema, "ok": GOOD}, strict=strict)
    return question(path, **offered, **demanded(path, "f"), **fields)


@in_each_api
@pytest.mark.parametrize("name", ENFORCED)
def test_an_answer_follows_its_schema(server: Server, path: str, streams: bool, name: str) -> None:
    strict = name != "a definition that needs itself"
    answer = answered(server.url, path, of_answer(path, ENFORCED[name], strict=strict), streams=streams)
    assert answer.notes == [] or not strict
    value = value_of(answer)
    assert isinstance(value, dict)
    jsonschema_rs.validate(ENFORCED[name] if strict else {"required": ["a"]}, value)
    assert answer.finish == "stop"


@in_each_talking_api
@pytest.mark.parametrize("name", ENFORCED)
def test_a_call_follows_its_schema(server: Server, path: str, streams: bool, name: str) -> None:
    strict = name != "a definition that needs itself"
    answer = answered(server.url, path, of_tool(path, ENFORCED[name], strict=strict), streams=streams)
    assert answer.notes == [] or not strict
    jsonschema_rs.validate(ENFORCED[name] if strict else {"required": ["a"]}, value_of(answer))
    assert answer.finish == "tool_calls"


@in_each_api
def test_a_schema_may_name_itself(server: Server, path: str, streams: bool) -> None:
    bodies = [of_answer(path, RECURSIVE, strict=True, limit=16)]
    bodies += [] if path == COMPLETIONS else [of_tool(path, RECURSIVE, strict=True, limit=16)]
    for body in bodies:
        assert answered(server.url, path, body, streams=streams).notes == []


@in_each_api
def test_each_part_is_held_or_told_of(server: Server, path: str, streams: bool) -> None:
    """Of a tool's parameters; completions have no tools, and take an answer's schema. Two of them are read to the end:
    the same engine holds all."""
    is_read = (path, streams) in {(CHAT, False), (COMPLETIONS, True)}
    body = (of_answer if path == COMPLETIONS else of_tool)(path, ALL_PARTS, limit=600 if is_read else 1)
    answer = answered(server.url, path, body, streams=streams)
    told = {(note["tool"], note["pointer"], note["keyword"]) for note in answer.notes}
    tool = "response_format" if path == COMPLETIONS else "f"
    assert told == {(tool, f"/properties/{name}", keyword) for name, (_, keyword) in PARTS.items() if keyword}
    if is_read:
        value = value_of(answer)
        assert value.keys() == PARTS.keys()
        for name, (part, keyword) in PARTS.items():
            if keyword is None:
                jsonschema_rs.validate(part, value[name])


@in_each_api
@pytest.mark.parametrize("pattern", UNANCHORED)
def test_a_pattern_without_anchors_may_match_anywhere(server: Server, path: str, streams: bool, pattern: str) -> None:
    """Of an answer, and of a call's arguments. The model would like to end the text at once, else to write sevens;
    messages have no such field, and choose among texts."""
    part: dict[str, Any] = {"type": "string", "pattern": pattern}
    (seven,) = httpx.post(f"{server.url}/tokenize", json={"content": "7"}).json()["tokens"]
    wishes: dict[str, Any] = {"logit_bias": [['"', 80], [seven, 60]]}
    if path == MESSAGES:
        part, wishes = {**part, "enum": ["", "no", "12", "a12b", "no 123", "123 no", "ab 456 c"]}, {}
    schema = {"type": "object", "properties": {"g": part}, "required": ["g"], "additionalProperties": False}
    bodies = [of_answer(path, schema, strict=True, limit=60, **wishes)]
    bodies += [] if path == COMPLETIONS else [of_tool(path, schema, strict=True, limit=60, **wishes)]
    for body in bodies:
        answer = answered(server.url, path, body, streams=streams)
        assert answer.notes == []
        value = value_of(answer)
        jsonschema_rs.validate(schema, value)
        assert re.search(pattern, value["g"])


@in_each_api
def test_what_is_not_enforced_is_told_in_the_answer(server: Server, path: str, streams: bool) -> None:
    answer = answered(server.url, path, of_answer(path, LOST), streams=streams)
    told = {"tool": "response_format", "pointer": "/properties/g", "keyword": "pattern"}
    assert answer.notes == [told]
    assert value_of(answer).keys() == {"g"}
    if not streams:
        body = answer.events[0]
        (note,) = body["luce"]["schema_notes"]
        assert note.items() >= told.items()
        assert note["reason"]
        assert body["usage"]["luce"]["schema_notes"] == [note]


@in_each_api
def test_strict_refuses_what_cannot_be_enforced(server: Server, path: str, streams: bool) -> None:
    bodies = [of_answer(path, LOST, strict=True)]
    bodies += [] if path == COMPLETIONS else [of_tool(path, LOST, strict=True)]
    for body in bodies:
        answer = ask(server.url, path, body, streams=streams)
        assert answer.status == 400
        assert "/properties/g" in answer.error["message"]
        assert "pattern" in answer.error["message"]
        if path != MESSAGES:
            assert answer.error["code"] == "schema_not_enforced"


@in_each_talking_api
def test_odd_tools_leave_the_set_as_it_is(server: Server, path: str, streams: bool) -> None:
    """Each by itself is told of, with its name; the sound one is held to its schema."""
    odd = {f"odd {name}".replace(" ", "_"): {"type": "object", "properties": {"p": p}} for name, (p, _) in ODD.items()}
    offered = tools(path, {**odd, "ok": GOOD})
    notes = answered(server.url, path, question(path, **offered, limit=1), streams=streams).notes
    expected = {(f"odd_{name}", "/properties/p", keyword) for name, (_, keyword) in ODD.items() if keyword}
    assert {(note["tool"], note["pointer"], note["keyword"]) for note in notes} == expected
    answer = answered(server.url, path, question(path, **offered, **demanded(path, "ok")), streams=streams)
    assert answer.notes == []
    assert answer.calls


@pytest.mark.parametrize("name", ODD)
def test_one_odd_tool_alone(server: Server, name: str) -> None:
    part, keyword = ODD[name]
    for path in (CHAT, RESPONSES, MESSAGES):
        body = question(path, **tools(path, {"f": {"type": "object", "properties": {"p": part}}, "ok": GOOD}), limit=1)
        notes = answered(server.url, path, body).notes
        assert notes == ([{"tool": "f", "pointer": "/properties/p", "keyword": keyword}] if keyword else [])


@in_each_talking_api
def test_a_tool_that_is_too_deep_for_any_prompt(server: Server, path: str, streams: bool) -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(90):
        deep = {"type": "object", "properties": {"a": deep}}
    offered = tools(path, {"deep": deep, "ok": GOOD})
    answer = answered(server.url, path, question(path, **offered, limit=1), streams=streams)
    assert {note["tool"] for note in answer.notes} == {"deep"}
    assert answered(server.url, path, question(path, **offered, **demanded(path, "ok")), streams=streams).calls


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_the_older_fields_for_a_schema(server: Server, path: str) -> None:
    for fields in ({"guided_json": GOOD}, {"json_schema": GOOD}, {"structured_outputs": {"json": GOOD}}):
        answer = answered(server.url, path, question(path, **fields))
        jsonschema_rs.validate(GOOD, value_of(answer))


def test_the_log_names_tool_and_place_once(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    schema = {"type": "object", "properties": {"only_here": {"type": "string", "pattern": "^(?=once)"}}}
    with caplog.at_level(logging.WARNING):
        for path in (CHAT, RESPONSES, MESSAGES):
            for streams in (False, True):
                answered(server.url, path, of_tool(path, schema, limit=1), streams=streams)
    said = [record.getMessage() for record in caplog.records]
    (line,) = [line for line in said if "only_here" in line]
    assert "pattern" in line
    assert not [line for line in said if "incomplete" in line], "llama.cpp's own words name neither tool nor place"
