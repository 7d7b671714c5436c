"""Real models write the mark of a call in Markdown code and in prose, with tools offered: it is text, whole, and no
grammar begins there. And they really call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.clients.streamed_answer import answer_of
from tests.http.serving import Server
from tests.http.test_grammar_beside_tools import events_of, said

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "get_weather", "description": "The weather of a city."}
FUNCTION = TOOL | {"parameters": SCHEMA}
TOOLS: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [{"type": "function", "function": FUNCTION}],
    "/v1/responses": [{"type": "function"} | FUNCTION],
    "/v1/messages": [TOOL | {"input_schema": SCHEMA}],
}
LIMITS = {"/v1/chat/completions": "max_tokens", "/v1/responses": "max_output_tokens", "/v1/messages": "max_tokens"}


def call_of(city: str) -> str:
    arguments = json.dumps({"name": "get_weather", "arguments": {"city": city}})
    return f"<tool_call>\n{arguments}\n</tool_call>"


FENCE = "# How to call a tool\n\nA model writes:\n\n```\n{}\n```\n\nThe program answers with the result."
DOCUMENTS = {
    "words in a fence": FENCE.format("<tool_call>\nthe tool and what it needs\n</tool_call>"),
    "a call in a fence": FENCE.format(call_of("Rome")),
    "in backticks": "A model writes `<tool_call>` before a call and `</tool_call>` behind it.",
    "in a sentence": "A model writes <tool_call> before a call and </tool_call> behind it.",
}


@pytest.fixture(scope="module", params=["smollm", "qwen"])
def model(request: pytest.FixtureRequest) -> str:
    if request.param == "qwen":
        request.getfixturevalue("real_models")  # left out without --full
    return str(request.param)


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, model: str, llama_templates_dir: Path) -> Iterator[Server]:
    """SmolLM2 was trained with no tools: it gets the template of a model that was, of the same marks of turns."""
    if model == "smollm":
        path = request.getfixturevalue("smollm")
        running = Server(path, {"threads": 2, "chat_template": llama_templates_dir / "Qwen-Qwen2.5-7B-Instruct.jinja"})
    else:
        running = Server(request.getfixturevalue("real_models")[model], {"threads": 2})
    try:
        yield running.start()
    finally:
        running.stop()


def ask(server: Server, path: str, turns: list[str], *, streams: bool) -> tuple[str, list[tuple[str, Any]]]:
    """Text and calls. `turns`: of the user and the model, in turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
    body = {
        "input" if path == "/v1/responses" else "messages": messages,
        "tools": TOOLS[path],
        "stream": streams,
        "temperature": 0,
        LIMITS[path]: 120,
    }
    return said(answer_of(events_of(server, path, body)))


@pytest.mark.parametrize("path", list(TOOLS))
@pytest.mark.parametrize("document", list(DOCUMENTS))
def test_a_mark_that_is_quoted_is_text(server: Server, model: str, path: str, document: str, full: bool) -> None:
    text = DOCUMENTS[document]
    turns = [f"Repeat this document word for word:\n\n{text}", text, "Repeat the document again."]
    for streams in (False, True) if full else (True,):
        written, calls = ask(server, path, turns, streams=streams)
        assert calls == []
        if model == "qwen":  # it writes both marks alike
            written, text = (words.replace("</tool_call>", "<tool_call>") for words in (written, text))
        assert written == text


@pytest.mark.parametrize("path", list(TOOLS))
def test_a_call_is_a_call(server: Server, model: str, path: str, full: bool) -> None:
    if model == "qwen":
        turns = ["What is the weather in Paris?"]
    else:
        turns = [f"Write these lines:\n{call_of('Rome')}", call_of("Rome"), f"Write these lines:\n{call_of('Paris')}"]
    for streams in (False, True) if full else (True,):
        assert ask(server, path, turns, streams=streams) == ("", [("get_weather", {"city": "Paris"})])
