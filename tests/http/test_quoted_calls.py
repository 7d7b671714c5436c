"""Calls that a model quotes, and calls that are not quite in their format, in each API, streamed and not. The texts are
forced by grammars."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scripts.clients.streamed_answer import answer_of
from tests.http.serving import Server
from tests.http.test_grammar_beside_tools import BODIES, events_of, said

CALL = '<tool_call>\n{"name": "read_file", "arguments": {"path": "a"}}\n</tool_call>'
WRITTEN = "<tool_call>\n<function=read_file>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>"
USE = "Use `<tool_call>` tags"


def answer(server: Server, path: str, text: str, *, streams: bool, **options: Any) -> list[dict[str, Any]]:
    body = {**BODIES[path], "grammar": f"root ::= {json.dumps(text)}", "stream": streams, **options}
    messages: list[dict[str, Any]] = answer_of(events_of(server, path, body))
    return [message for message in messages if message.get("type") != "reasoning"]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize("text", ["```\nCALL\n```\nSo.", "It is `CALL`."])
def test_a_quoted_call_is_text(server: Server, tagged: Server, path: str, text: str, streams: bool) -> None:
    quoted = text.replace("CALL", CALL)
    assert said(answer(server, path, quoted, streams=streams)) == (quoted, [])
    if streams:
        quoted = text.replace("CALL", WRITTEN)
        assert said(answer(tagged, path, f"so</think>\n\n{quoted}", streams=streams)) == (quoted, [])


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("path", list(BODIES))
def test_a_quoted_call_before_a_call(server: Server, path: str, streams: bool) -> None:
    text = f"Like `{CALL}`:\n{CALL}"
    content, calls = said(answer(server, path, text, streams=streams))
    assert (content, calls) == (f"Like `{CALL}`:", [("read_file", {"path": "a"})])


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("path", list(BODIES))
def test_a_mark_in_the_history_is_repeated(tagged: Server, path: str, streams: bool) -> None:
    """By the model itself: its trigger does not act within code."""
    messages = [{"role": "user", "content": "repeat"}, {"role": "assistant", "content": USE}]
    name = "input" if path == "/v1/responses" else "messages"
    asked = {name: [*messages, {"role": "user", "content": "repeat"}]}
    assert said(answer(tagged, path, f"so</think>\n\n{USE}", streams=streams, **asked)) == (USE, [])
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    body = {**BODIES[path], name: messages, limit: 12, "temperature": 0, "stream": streams}
    parts = answer_of(events_of(tagged, path, body))
    assert any(part.get("type") == "reasoning" or part.get("reasoning_content") or said([part])[0] for part in parts)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("path", list(BODIES))
def test_a_call_that_is_not_quite_in_its_format(server: Server, tagged: Server, path: str, streams: bool) -> None:
    text = '<tool_call>\n{"id": "x1", "arguments": {"deep": "no"}, "name": "read_file"}\n</tool_call>'
    assert said(answer(server, path, text, streams=streams)) == ("", [("read_file", {"deep": "no"})])
    text = WRITTEN.replace("path", "deep")
    assert said(answer(tagged, path, f"so</think>\n\n{text}", streams=streams)) == ("", [("read_file", {"deep": "a"})])


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("n_tokens", [40, 44, 48])
def test_a_call_that_the_limit_cuts_off_is_incomplete(tagged: Server, n_tokens: int, streams: bool) -> None:
    """Within its arguments or within a mark."""
    grammar = f"root ::= {json.dumps('so</think>' + WRITTEN)}"
    body = {**BODIES["/v1/responses"], "grammar": grammar, "stream": streams, "max_output_tokens": n_tokens}
    events = events_of(tagged, "/v1/responses", body)
    response = events[-1]["response"] if streams else events[0]
    _, call = response["output"]
    assert (response["status"], call["type"], call["status"]) == ("incomplete", "function_call", "incomplete")
    assert call["arguments"].startswith('{"path":"a')
