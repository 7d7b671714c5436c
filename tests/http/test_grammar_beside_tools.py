"""A grammar in a request with tools is that of the whole answer, as the model writes it: calls are written by it and
come back as calls, in each API."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import pytest

from scripts.clients.recording_proxy import Record, note_usage
from scripts.clients.streamed_answer import answer_of
from tests.http.serving import Server

PROPERTIES = {"path": {"type": "string"}, "deep": {"type": "boolean", "default": False}}
PARAMETERS = {"type": "object", "properties": PROPERTIES, "required": ["path"]}
ARGUMENTS = {"path": 'docs/"a".md'}
CALL = 'I look.\n<tool_call>\n{"name": "read_file", "arguments": {"path": "docs/\\"a\\".md"}}\n</tool_call>'
GRAMMAR = f"root ::= {json.dumps(CALL)}"
WHO = [{"role": "user", "content": "Who are you?"}]

CHAT: dict[str, Any] = {
    "messages": WHO,
    "tools": [{"type": "function", "function": {"name": "read_file", "parameters": PARAMETERS}}],
}
RESPONSES: dict[str, Any] = {
    "input": "Who are you?",
    "tools": [{"type": "function", "name": "read_file", "parameters": PARAMETERS}],
}
MESSAGES: dict[str, Any] = {
    "messages": WHO,
    "max_tokens": 200,
    "tools": [{"name": "read_file", "input_schema": PARAMETERS}],
}
BODIES = {"/v1/chat/completions": CHAT, "/v1/responses": RESPONSES, "/v1/messages": MESSAGES}


def events_of(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = httpx.post(server.url + path, json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    if not body.get("stream"):
        return [answer.json()]
    lines = answer.text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


def said(messages: list[dict[str, Any]]) -> tuple[str, list[tuple[str, Any]]]:
    """Text and calls."""
    texts, calls = [], []
    for message in messages:
        if message.get("type") == "function_call":
            calls.append((message["name"], json.loads(message["arguments"])))
        content = message.get("content") or []
        for block in [{"text": content}] if isinstance(content, str) else content:
            texts.append(block.get("text", ""))
            calls += [(block["name"], block["input"])] if block.get("type") == "tool_use" else []
        functions = [call["function"] for call in message.get("tool_calls") or ()]
        calls += [(function["name"], json.loads(function["arguments"])) for function in functions]
    return "".join(texts).strip(), calls


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("path", list(BODIES))
def test_a_call_by_the_grammar(server: Server, path: str, streams: bool) -> None:
    events = events_of(server, path, {**BODIES[path], "grammar": GRAMMAR, "stream": streams})
    assert said(answer_of(events)) == ("I look.", [("read_file", ARGUMENTS)])


@pytest.mark.parametrize("path", list(BODIES))
def test_text_by_the_grammar(server: Server, path: str) -> None:
    required: Any = {"type": "any"} if path == "/v1/messages" else "required"
    body = {**BODIES[path], "grammar": 'root ::= "No call."', "tool_choice": required}
    assert said(answer_of(events_of(server, path, body))) == ("No call.", [])


def filled_in(message: dict[str, Any]) -> None:
    """As Claude Code sends calls back: with the defaults of arguments that the model left out."""
    whole = {"deep": False, **ARGUMENTS}
    if message.get("type") == "function_call":
        message["arguments"] = json.dumps(whole)
    for block in message.get("content") or ():
        if isinstance(block, dict) and block.get("type") == "tool_use":
            block["input"] = whole
    for call in message.get("tool_calls") or ():
        call["function"]["arguments"] = json.dumps(whole)


@pytest.mark.parametrize("fills_in", [False, True])
@pytest.mark.parametrize("path", list(BODIES))
def test_the_next_turn_finds_it(server: Server, path: str, *, fills_in: bool) -> None:
    """What was written under a grammar is read as it was written."""
    body = {**BODIES[path], "grammar": GRAMMAR}
    answer = answer_of(events_of(server, path, body))
    name = "input" if "input" in body else "messages"
    if fills_in:
        for message in answer:
            filled_in(message)
    asked = [{"role": "user", "content": "Who are you?"}, *answer]
    if path == "/v1/messages":
        call = next(block["id"] for block in answer[0]["content"] if block["type"] == "tool_use")
        asked.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": "x"}]})
    elif path == "/v1/responses":
        call = next(item["call_id"] for item in answer if item["type"] == "function_call")
        asked.append({"type": "function_call_output", "call_id": call, "output": "x"})
    else:
        asked.append({"role": "tool", "tool_call_id": answer[0]["tool_calls"][0]["id"], "content": "x"})
    (second,) = events_of(server, path, {**body, name: asked, "grammar": 'root ::= "Done."'})
    assert said(answer_of([second])) == ("Done.", [])
    record = Record(path, 1, body)
    note_usage(record, second["usage"])
    assert record.n_prompt - record.n_cached < 40, second["usage"]
