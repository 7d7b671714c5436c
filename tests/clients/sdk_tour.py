"""What OpenAI's and Anthropic's SDKs are used for, by whatever version is installed: run with the server's address.

A program of its own, in the interpreter that has the SDKs; it says what it used.
"""

from __future__ import annotations

import json
import sys
from typing import Any

ASK = "Who are you?"
GREEDY = {"temperature": 0}
"""Anthropic's newest version has no argument for it."""
TOOL = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def tour_openai(url: str) -> str:
    import openai

    client: Any = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)
    messages: list[Any] = [{"role": "user", "content": ASK}]
    whole = client.chat.completions.create(model="luce", messages=messages, max_tokens=16, temperature=0)
    said = whole.choices[0].message.content
    assert said
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 0
    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in client.chat.completions.create(
            model="luce", messages=messages, max_tokens=16, temperature=0, stream=True
        )
        if chunk.choices
    ]
    assert "".join(pieces) == said
    called = client.chat.completions.create(
        model="luce", messages=messages, max_tokens=64, tool_choice="required",
        tools=[{"type": "function", "function": {"name": "read", "parameters": TOOL}}],
    )  # fmt: skip
    calls = called.choices[0].message.tool_calls
    assert calls
    assert calls[0].function.name == "read"
    assert client.models.list().data
    response = client.responses.create(model="luce", input=ASK, max_output_tokens=16)
    assert response.output_text
    kinds = [
        event.type for event in client.responses.create(model="luce", input=ASK, max_output_tokens=16, stream=True)
    ]
    assert kinds[0] == "response.created"
    assert kinds[-1] in {"response.completed", "response.incomplete"}
    try:
        client.chat.completions.create(model="luce", messages=[])
    except openai.BadRequestError:
        pass
    else:
        raise AssertionError("a request without messages is refused")
    return str(openai.__version__)


def tour_anthropic(url: str) -> str:
    import anthropic

    client: Any = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=120)
    messages: list[Any] = [{"role": "user", "content": ASK}]
    whole = client.messages.create(model="luce", messages=messages, max_tokens=16, extra_body=GREEDY)
    said = whole.content[0].text
    assert said
    assert whole.usage.output_tokens > 0
    with client.messages.stream(model="luce", messages=messages, max_tokens=16, extra_body=GREEDY) as stream:
        assert "".join(stream.text_stream) == said
    called = client.messages.create(
        model="luce", messages=messages, max_tokens=64, tool_choice={"type": "any"},
        tools=[{"name": "read", "input_schema": TOOL}],
    )  # fmt: skip
    assert called.stop_reason == "tool_use"
    assert called.content[-1].name == "read"
    try:
        client.messages.create(model="luce", messages=[], max_tokens=16)
    except anthropic.BadRequestError:
        pass
    else:
        raise AssertionError("a request without messages is refused")
    return str(anthropic.__version__)


if __name__ == "__main__":
    tours = {"openai": tour_openai, "anthropic": tour_anthropic}
    print(json.dumps({"version": tours[sys.argv[1]](sys.argv[2]), "path": sys.modules[sys.argv[1]].__file__}))
