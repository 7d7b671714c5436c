"""Schemas over HTTP, in each API, streamed and not: what holds an answer, what is told that does not, and what strict
refuses. Inputs of public bug reports."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import jsonschema_rs
import pytest

from luce.supervisor.http.transport.schema_notes import HEADER
from tests.http.serving import Server

TURN = [{"role": "user", "content": "Who are you?"}]
ONE_OF = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
}
ENFORCED: list[dict[str, Any]] = [
    {"type": "object", "properties": {"kind": {"const": "circle"}}, "required": ["kind"]},
    ONE_OF,
    {"properties": {"k": {"type": "integer"}}, "required": ["k"], "anyOf": [{"required": ["z"]}, {"required": ["y"]}]},
    {"type": "object", "properties": {"g": {"type": "string", "pattern": "^.*$", "maxLength": 9}}, "required": ["g"]},
    {"type": "object", "properties": {"g": {"type": "string", "pattern": r"^\d{2}-\w$"}}, "required": ["g", "h"]},
    {"type": "object", "properties": {"n": {"type": "number", "minimum": 2.5, "maximum": 2.75}}, "required": ["n"]},
]
LOST = {"type": "object", "properties": {"g": {"type": "string", "pattern": "^(?=x)"}}, "required": ["g"]}


def post(server: Server, path: str, body: dict[str, Any], *, streams: bool = False) -> httpx.Response:
    limit = {"/v1/responses": "max_output_tokens"}.get(path, "max_tokens")
    return httpx.post(server.url + path, json={limit: 120, "temperature": 0, "stream": streams} | body, timeout=120)


def of_answer(path: str, schema: dict[str, Any], *, strict: bool) -> dict[str, Any]:
    match path:
        case "/v1/chat/completions":
            wrapped = {"name": "x", "strict": strict, "schema": schema}
            return {"messages": TURN, "response_format": {"type": "json_schema", "json_schema": wrapped}}
        case "/v1/responses":
            form = {"type": "json_schema", "name": "x", "strict": strict, "schema": schema}
            return {"input": "Who are you?", "text": {"format": form}}
        case "/v1/messages":
            form = {"type": "json_schema", "strict": strict, "schema": schema}
            return {"messages": TURN, "output_config": {"format": form}}
        case _:
            return {"prompt": "Here is JSON: ", "guided_json": schema}


def of_tool(path: str, schema: dict[str, Any], *, strict: bool) -> dict[str, Any]:
    good = {"type": "object", "properties": {"c": {"enum": ["x", "y"]}}, "required": ["c"]}
    match path:
        case "/v1/chat/completions":
            tools = [("f", schema, strict), ("ok", good, False)]
            functions = [{"name": name, "parameters": form, "strict": said} for name, form, said in tools]
            wanted: Any = {"type": "function", "function": {"name": "f"}}
            listed: list[Any] = [{"type": "function", "function": function} for function in functions]
            return {"messages": TURN, "tools": listed, "tool_choice": wanted}
        case "/v1/responses":
            listed = [
                {"type": "function", "name": "f", "parameters": schema, "strict": strict},
                {"type": "function", "name": "ok", "parameters": good},
            ]
            return {"input": "Who are you?", "tools": listed, "tool_choice": {"type": "function", "name": "f"}}
        case _:
            listed = [{"name": "f", "input_schema": schema, "strict": strict}, {"name": "ok", "input_schema": good}]
            return {"messages": TURN, "tools": listed, "tool_choice": {"type": "tool", "name": "f"}}


def text_of(answer: dict[str, Any]) -> str:
    if "choices" in answer:
        choice = answer["choices"][0]
        return str(choice["text"] if "text" in choice else choice["message"]["content"])
    blocks = answer["content"] if "content" in answer else answer["output"][-1]["content"]
    return "".join(block["text"] for block in blocks)


def arguments_of(answer: dict[str, Any]) -> Any:
    if "choices" in answer:
        return json.loads(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])
    if "output" in answer:
        return json.loads(next(item for item in answer["output"] if item["type"] == "function_call")["arguments"])
    return next(block for block in answer["content"] if block["type"] == "tool_use")["input"]


RECURSIVE = {"type": "object", "properties": {"n": {"type": "integer"}, "child": {"$ref": "#"}}, "required": ["n"]}
FORMATS = ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"]
CALLS = FORMATS[:3]


@pytest.mark.parametrize("path", FORMATS)
@pytest.mark.parametrize("schema", ENFORCED)
def test_an_answer_follows_its_schema(server: Server, path: str, schema: dict[str, Any]) -> None:
    answer = post(server, path, of_answer(path, schema, strict=True))
    assert answer.status_code == 200, answer.text
    assert HEADER not in answer.headers
    assert "luce" not in answer.json()
    jsonschema_rs.validate(schema, json.loads(text_of(answer.json())))


def test_completions_take_a_response_format(server: Server) -> None:
    form = {"name": "x", "strict": True, "schema": {"const": {"kind": "circle"}}}
    body = {"prompt": "?", "max_tokens": 60, "response_format": {"type": "json_schema", "json_schema": form}}
    assert json.loads(text_of(post(server, "/v1/completions", body).json())) == {"kind": "circle"}
    form["schema"] = {"type": "string", "pattern": "(?=a)"}
    assert post(server, "/v1/completions", body).json()["error"]["code"] == "schema_not_enforced"


@pytest.mark.parametrize("path", CALLS)
def test_a_schema_may_name_itself(server: Server, path: str) -> None:
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    for body in (of_answer(path, RECURSIVE, strict=True), of_tool(path, RECURSIVE, strict=True)):
        answer = post(server, path, {**body, limit: 16})
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize("schema", ENFORCED)
def test_a_call_follows_its_schema(server: Server, path: str, schema: dict[str, Any]) -> None:
    answer = post(server, path, of_tool(path, schema, strict=True))
    assert answer.status_code == 200, answer.text
    jsonschema_rs.validate(schema, arguments_of(answer.json()))


@pytest.mark.parametrize("path", FORMATS)
@pytest.mark.parametrize("streams", [False, True])
def test_what_is_not_enforced_is_told_in_the_answer(server: Server, path: str, streams: bool) -> None:
    answer = post(server, path, of_answer(path, LOST, strict=False), streams=streams)
    assert answer.status_code == 200, answer.text
    told = {"tool": "response_format", "pointer": "/properties/g", "keyword": "pattern"}
    assert json.loads(answer.headers[HEADER]) == [told]
    if not streams:
        body = answer.json()
        assert json.loads(text_of(body)).keys() == {"g"}
        (note,) = body["luce"]["schema_notes"]
        assert note.items() >= told.items()
        assert note["reason"]
        assert body["usage"]["luce"]["schema_notes"] == [note]


@pytest.mark.parametrize("path", CALLS)
def test_strict_refuses_what_cannot_be_enforced(server: Server, path: str) -> None:
    for body in (of_answer(path, LOST, strict=True), of_tool(path, LOST, strict=True)):
        answer = post(server, path, body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert "/properties/g" in error["message"]
        assert "pattern" in error["message"]
        if path != "/v1/messages":
            assert error["code"] == "schema_not_enforced"


@pytest.mark.parametrize(
    ("part", "keyword"),
    [
        ({"type": "string", "minLength": 2001}, "minLength"),
        ({"type": "array", "items": {"type": "null"}, "minItems": 3000}, "minItems"),
        ({"type": "string", "pattern": "^[a-z]{2001}$"}, "pattern"),
        ({"type": "array", "items": {"type": "null"}, "maxItems": 9007199254740991}, None),
        ({"type": "string", "maxLength": 2147483648}, None),
        ({"type": "string", "minLength": 1.0}, None),
        ({"type": "integer", "maximum": 18446744073709551616}, None),
        ({"type": "any"}, None),
        ({"type": "int"}, None),
        ({"type": "float"}, None),
        ({"type": "str"}, None),
        ({"type": "dict"}, None),
        ({"type": "OBJECT"}, None),
        ({"type": "file"}, "type"),
        ({"enum": []}, "enum"),
        ({"type": "object", "properties": None}, "properties"),
        ({"$ref": "#/$defs/nowhere"}, "$ref"),
    ],
)
def test_one_odd_tool_leaves_the_set_as_it_is(server: Server, part: dict[str, Any], keyword: str | None) -> None:
    body = of_tool("/v1/chat/completions", {"type": "object", "properties": {"p": part}}, strict=False)
    body["tool_choice"] = "auto"
    answer = post(server, "/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    notes = json.loads(answer.headers.get(HEADER, "[]"))
    expected = [{"tool": "f", "pointer": "/properties/p", "keyword": keyword}] if keyword else []
    assert notes == expected
    body["tool_choice"] = {"type": "function", "function": {"name": "ok"}}
    answer = post(server, "/v1/chat/completions", body)
    assert HEADER not in answer.headers
    assert arguments_of(answer.json())["c"] in {"x", "y"}
