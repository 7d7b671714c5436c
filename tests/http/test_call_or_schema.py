"""Tools together with a schema for the answer: a tool is called, or the answer is JSON of the schema, in each API.

The packaged model calls read_file when asked to read a file, and says something else otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest

from tests.http.serving import Server

READ_IT, WHO = "Read the file src/app.py", "Who are you?"
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["green", "red"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
COLOURS = [{"colour": "green"}, {"colour": "red"}]

Read = tuple[str, list[tuple[str, Any]]]


def _chat(server: Server, text: str) -> Read:
    body = {
        "messages": [{"role": "user", "content": text}],
        "tools": [{"type": "function", "function": {"name": "read_file", "parameters": PARAMETERS}}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": SCHEMA}},
    }
    message = _post(server, "/v1/chat/completions", body)["choices"][0]["message"]
    called = [call["function"] for call in message.get("tool_calls") or ()]
    calls = [(function["name"], json.loads(function["arguments"])) for function in called]
    return message["content"] or "", calls


def _streamed_chat(server: Server, text: str) -> Read:
    body = {
        "messages": [{"role": "user", "content": text}],
        "tools": [{"type": "function", "function": {"name": "read_file", "parameters": PARAMETERS}}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": SCHEMA}},
        "stream": True,
    }
    content, names, arguments = "", [], ""
    answer = httpx.post(
        f"{server.url}/v1/chat/completions", json={**body, "temperature": 0, "max_tokens": 80}, timeout=120
    )
    for line in answer.text.splitlines():
        if not line.startswith("data: {"):
            continue
        delta = json.loads(line.removeprefix("data: "))["choices"][0]["delta"]
        content += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            names += [call["function"]["name"]] if call["function"].get("name") else []
            arguments += call["function"].get("arguments") or ""
    return content, [(names[0], json.loads(arguments))] if names else []


def _responses(server: Server, text: str) -> Read:
    body = {
        "input": text,
        "tools": [{"type": "function", "name": "read_file", "parameters": PARAMETERS}],
        "text": {"format": {"type": "json_schema", "name": "c", "schema": SCHEMA}},
    }
    output = _post(server, "/v1/responses", body)["output"]
    texts = [part["text"] for item in output if item["type"] == "message" for part in item["content"]]
    calls = [item for item in output if item["type"] == "function_call"]
    return "".join(texts), [(call["name"], json.loads(call["arguments"])) for call in calls]


def _messages(server: Server, text: str) -> Read:
    body = {
        "messages": [{"role": "user", "content": text}],
        "tools": [{"name": "read_file", "input_schema": PARAMETERS}],
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    }
    content = _post(server, "/v1/messages", body)["content"]
    texts = [block["text"] for block in content if block["type"] == "text"]
    return "".join(texts), [(block["name"], block["input"]) for block in content if block["type"] == "tool_use"]


def _post(server: Server, path: str, body: dict[str, Any]) -> Any:
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    answer = httpx.post(server.url + path, json={**body, "temperature": 0, limit: 80}, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("ask", [_chat, _streamed_chat, _responses, _messages])
def test_a_call_or_json_of_the_schema(server: Server, ask: Callable[[Server, str], Read]) -> None:
    assert ask(server, READ_IT) == ("", [("read_file", {"path": "src/app.py"})])
    content, calls = ask(server, WHO)
    assert calls == []
    assert json.loads(content) in COLOURS
