"""/v1/messages does what llama-server's own tests ask of it (cases.py lists which)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.http.conftest import MakeServer
from tests.http.llama_server.asking import events, told

HELLO: Any = [{"role": "user", "content": "Hello"}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather in a city",
    "input_schema": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
USE: Any = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"location": "Paris"}}


def result(content: Any, *beside: Any, **fields: Any) -> list[Any]:
    block = {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **fields}
    return [
        {"role": "user", "content": "The weather?"},
        {"role": "assistant", "content": [USE]},
        {"role": "user", "content": [*beside, block]},
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"system": "You are a helpful assistant."},
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "What"}, {"type": "text", "text": " is"}]}
            ]
        },
        {"messages": [*HELLO, {"role": "assistant", "content": "Hi there!"}, *HELLO]},
        {"tools": [WEATHER]},
        {"messages": result("sunny, 25 °C")},
        {"messages": result("sunny", {"type": "text", "text": "Here is it:"})},
        {"messages": result("not found", is_error=True)},
        {"stop_sequences": ["\n", "END"]},
        {"temperature": 0.5},
        {"top_p": 0.9},
        {"top_k": 40},
        {"thinking": {"type": "enabled", "budget_tokens": 50}},
        {"metadata": {"user_id": "somebody"}},
    ],
)
def test_what_is_taken(client: httpx.Client, fields: dict[str, Any]) -> None:
    body = {"model": "test", "messages": HELLO, **fields}
    answer = told(client, "/v1/messages", **body, max_tokens=12)
    assert (answer["type"], answer["role"]) == ("message", "assistant")
    assert answer["stop_reason"] in {"end_turn", "max_tokens", "stop_sequence", "tool_use"}
    assert answer["content"]
    assert ("tool_use" in {block["type"] for block in answer["content"]}) == (answer["stop_reason"] == "tool_use")
    usage = answer["usage"]
    assert usage["output_tokens"] > 0
    counted = told(client, "/v1/messages/count_tokens", **body)
    assert counted.keys() & {"input_tokens", "output_tokens"} == {"input_tokens"}
    assert counted["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"] > 0
    assert "timings" not in answer


@pytest.mark.parametrize("tools", [[], [WEATHER]])
def test_blocks_of_a_stream_are_numbered_and_closed(client: httpx.Client, tools: Any) -> None:
    body = {"model": "test", "messages": HELLO, "max_tokens": 40, "tools": tools}
    told_events = [event for event in events(client, "/v1/messages", **body) if event["type"] != "ping"]
    kinds = [event["type"] for event in told_events]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert told_events[0]["message"]["content"] == []
    assert told_events[0]["message"]["usage"]["input_tokens"] >= 0
    begun = [event["index"] for event in told_events if event["type"] == "content_block_start"]
    ended = [event["index"] for event in told_events if event["type"] == "content_block_stop"]
    assert begun == ended == list(range(len(begun)))
    assert begun
    assert told_events[-2]["usage"]["output_tokens"] > 0
    assert "timings" not in told_events[-1]


def test_the_same_model_speaks_both_apis(client: httpx.Client) -> None:
    theirs = told(client, "/v1/messages", model="test", messages=HELLO, max_tokens=8, temperature=0)
    openais = told(client, "/v1/chat/completions", model="test", messages=HELLO, max_tokens=8, temperature=0)
    assert (theirs["type"], openais["object"]) == ("message", "chat.completion")
    assert theirs["content"][0]["text"] == openais["choices"][0]["message"]["content"]
    assert theirs["usage"]["output_tokens"] == openais["usage"]["completion_tokens"]


async def test_thinking_between_calls_stays_in_the_prompt(make_server: MakeServer, llama_templates_dir: Path) -> None:
    thoughts = ["I should look at the folder first.", "Now I read the main file."]
    openais: list[Any] = [{"role": "user", "content": "Fix the bug"}]
    theirs: list[Any] = [{"role": "user", "content": "Fix the bug"}]
    for number, thought in enumerate(thoughts):
        function = {"name": "get_weather", "arguments": '{"location": "."}'}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        openais += [
            {"role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": "main.py"},
        ]
        use = {**USE, "id": f"call_{number}"}
        theirs += [
            {"role": "assistant", "content": [{"type": "thinking", "thinking": thought, "signature": ""}, use]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use["id"], "content": "main.py"}]},
        ]
    template = llama_templates_dir / "Qwen-Qwen3-0.6B.jinja"
    async with make_server(chat_template=template, lanes=1) as server:
        with httpx.Client(base_url=server.url, timeout=120) as client:
            prompt = told(client, "/apply-template", messages=openais)["prompt"]
            assert all(f"<think>\n{thought}\n</think>" in prompt for thought in thoughts)
            silent = [
                {**turn, "content": turn["content"][1:]} if turn["role"] == "assistant" else turn for turn in theirs
            ]
            n_without, n_with = [  # in this order: reasoning that is left out later is put back
                told(client, "/v1/messages/count_tokens", model="test", messages=messages)["input_tokens"]
                for messages in (silent, theirs)
            ]
            assert n_with > n_without + 10
