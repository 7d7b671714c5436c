"""Log-probabilities over HTTP, in each API that has them, streamed and not: the sampled token is among the likeliest
that are told, and the tokens join to the content, whatever else the model writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.asking import CHAT, COMPLETIONS, RESPONSES, Answer, answered, question, tools
from tests.http.serving import Server

FIELDS: dict[str, dict[str, Any]] = {
    CHAT: {"logprobs": True, "top_logprobs": 2},
    RESPONSES: {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
    COMPLETIONS: {"logprobs": 2},
}
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
CALL = "<tool_call>\n<function=read_file>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>"


@pytest.fixture(scope="module")
def thinking(tiny_model: Path, llama_templates_dir: Path) -> Iterator[Server]:
    running = Server(tiny_model, {"chat_template": llama_templates_dir / "Qwen3.5-4B.jinja"})
    try:
        yield running.start()
    finally:
        running.stop()


def told(path: str, answer: Answer, *, streams: bool) -> list[tuple[str, list[str]]]:
    """Of each token its text and those of the likeliest."""
    entries: list[Any] = []
    for event in answer.events:
        for choice in event.get("choices") or ():
            of = choice.get("logprobs") or {}
            if path == COMPLETIONS:
                entries += zip(of.get("tokens", ()), map(list, of.get("top_logprobs", ())), strict=True)
            else:
                entries += of.get("content") or ()
        if path == RESPONSES and streams:
            entries += event.get("logprobs", ()) if event["type"] == "response.output_text.delta" else ()
        for item in event.get("output", ()):
            entries += [entry for part in item.get("content") or () for entry in part.get("logprobs", ())]
    if path == COMPLETIONS:
        return entries
    return [(entry["token"], [likely["token"] for likely in entry["top_logprobs"]]) for entry in entries]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("path", FIELDS)
def test_the_sampled_token_is_among_the_likeliest(server: Server, path: str, streams: bool) -> None:
    """However unlikely it was."""
    wild = {"temperature": 2.0, "top_k": 0, "top_p": 1, "min_p": 0}
    body = {**question(path, "Write a poem about", limit=24, seed=7, **FIELDS[path]), **wild}
    answer = answered(server.url, path, body, streams=streams)
    entries = told(path, answer, streams=streams)
    assert entries
    assert all(token in likeliest for token, likeliest in entries)
    assert any(token == likeliest[-1] for token, likeliest in entries), "one of them was not the likeliest"


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_reasoning_and_calls_have_none(thinking: Server, path: str, streams: bool) -> None:
    written = f"Hm, so.</think>\n\nI look.\n{CALL}"
    grammar = {"grammar": f"root ::= {json.dumps(written)}"}
    body = question(path, **tools(path, {"read_file": SCHEMA}), **grammar, **FIELDS[path])
    answer = answered(thinking.url, path, body, streams=streams)
    assert (answer.reasoning.strip(), answer.calls) == ("Hm, so.", [("read_file", {"path": "a"})])
    entries = told(path, answer, streams=streams)
    assert "".join(token for token, _ in entries) == answer.content
    assert answer.content.strip() == "I look."
