"""/chat/completions and /responses do what llama-server's own tests ask of them (cases.py lists which)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from openai import OpenAI

from tests.http.conftest import MakeServer
from tests.http.llama_server.asking import events, refused, told
from tests.http.serving import Server

CHAT = "/chat/completions"
BOOK: Any = [{"role": "system", "content": "Book"}, {"role": "user", "content": "What is the best book"}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "test",
        "description": "",
        "parameters": {
            "type": "object",
            "properties": {"success": {"type": "boolean", "const": True}},
            "required": ["success"],
        },
    },
}


def begun(content: Any) -> list[Any]:
    return [*BOOK, {"role": "assistant", "content": content}]


def prompt_of(client: httpx.Client, messages: Any, **fields: Any) -> str:
    answer = told(client, CHAT, messages=messages, max_tokens=1, verbose=True, **fields)
    return str(answer["__verbose"]["prompt"])


@pytest.mark.parametrize("question", ["What is the best book", [{"type": "text", "text": "What is the best book"}]])
def test_an_answer(client: httpx.Client, question: Any) -> None:
    messages = [BOOK[0], {"role": "user", "content": question}]
    answer = told(client, CHAT, model=None, max_tokens=8, messages=messages, ignore_eos=True)
    assert "cmpl" in answer["id"]
    assert re.match(r"b\d+", answer["system_fingerprint"])
    counted = told(client, f"{CHAT}/input_tokens", messages=messages)
    assert answer["usage"]["prompt_tokens"] == counted["input_tokens"] > 5
    assert answer["usage"]["completion_tokens"] == 8
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    assert choice["finish_reason"] == "length"


def test_a_stream_says_its_role_once_and_its_finish_without_text(client: httpx.Client) -> None:
    fields = {"max_tokens": 8, "messages": BOOK, "ignore_eos": True, "stream_options": {"include_usage": True}}
    first, *pieces, last, usage = events(client, CHAT, **fields)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert all(set(piece["choices"][0]["delta"]) == {"content"} for piece in pieces)
    assert all(piece["choices"][0]["finish_reason"] is None for piece in pieces)
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 8
    chunks = [first, *pieces, last, usage]
    assert {chunk["model"] for chunk in chunks} == {"luce-tiny-Q8_0"}
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_how_much_of_a_prompt_was_cached(client: httpx.Client) -> None:
    counts = []
    for number in (1, 1, 2):
        messages = [{"role": "system", "content": "Test. " * 80}, {"role": "user", "content": f"4 5 {number}"}]
        usage = told(client, CHAT, messages=messages, max_tokens=4)["usage"]
        counts.append((usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]))
    (n_first, n_unknown), (n_same, n_known), (n_other, n_shared) = counts
    assert n_first == n_same == n_other
    assert n_unknown == 0 < n_shared < n_known <= n_first


def test_parts_of_a_message_are_lines(client: httpx.Client) -> None:
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "the best book"}]
    in_parts, whole = [
        told(client, "/apply-template", messages=[{"role": "user", "content": content}])["prompt"]
        for content in (parts, "What is\nthe best book")
    ]
    assert in_parts == whole


def test_an_assistants_message_is_gone_on_from(client: httpx.Client) -> None:
    end = "What is the best book<|im_end|>\n<|im_start|>assistant\n"
    assert prompt_of(client, begun("Whill")).endswith(f"{end}Whill")
    parts = [{"type": "text", "text": "Wh"}, {"type": "text", "text": "ill"}]
    assert prompt_of(client, begun(parts)).endswith(f"{end}Wh\nill")
    explicit = {"add_generation_prompt": False, "continue_final_message": True}
    assert prompt_of(client, begun("Whill"), **explicit) == prompt_of(client, begun("Whill"))
    both = {"add_generation_prompt": True, "continue_final_message": True}
    assert refused(client, CHAT, messages=begun("Whill"), **both)["param"] == "continue_final_message"
    assert "__verbose" not in told(client, CHAT, messages=BOOK, max_tokens=1)


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"type": "json_object", "schema": {"const": "42"}}, '"42"'),
        ({"type": "json_object", "schema": {"type": "array", "items": [{"type": "integer"}]}}, r"\[\s*-?\d+\s*\]"),
        ({"type": "json_schema", "json_schema": {"schema": {"const": "foooooo"}}}, '"foooooo"'),
        ({"type": "json_object"}, r"\{.*"),
        ({"type": "sound"}, None),
        ({"type": "json_object", "schema": 123}, None),
        ({"type": "json_object", "schema": {"type": 123}}, None),
        ({"type": "json_object", "schema": {"type": "hiccup"}}, None),
    ],
)
def test_formats(client: httpx.Client, form: Any, pattern: str | None) -> None:
    body = {"max_tokens": 24, "messages": BOOK, "temperature": 0, "response_format": form}
    if pattern is None:
        refused(client, CHAT, **body)
    else:
        content = told(client, CHAT, **body)["choices"][0]["message"]["content"]
        assert re.match(pattern, content, re.DOTALL), content


@pytest.mark.parametrize(
    "messages",
    [
        None, "string", [123], [{}], [{"role": 123}], [{"role": "system", "content": 123}],
        [{"role": "system", "content": "test"}, {}], [*begun("test"), {"role": "assistant", "content": "test"}],
    ],
)  # fmt: skip
def test_what_is_no_conversation_is_refused(client: httpx.Client, messages: Any) -> None:
    refused(client, CHAT, messages=messages)


def test_timings_come_with_each_piece_and_at_the_end(client: httpx.Client) -> None:
    fields = {"max_tokens": 10, "messages": BOOK, "ignore_eos": True, "timings_per_token": True, "cache_prompt": False}
    first, *pieces, last, usage = events(client, CHAT, **fields, stream_options={"include_usage": True})
    assert "timings" not in first
    assert "timings" not in last
    assert all(piece["timings"]["predicted_n"] <= 10 for piece in pieces)
    assert usage["timings"]["predicted_n"] == 10
    assert min(usage["timings"]["prompt_per_second"], usage["timings"]["predicted_per_second"]) > 0


def test_several_choices_again_and_again(client: httpx.Client) -> None:
    for _ in range(2):
        answer = told(client, CHAT, messages=BOOK, max_tokens=8, n=2, id_slot=0, ignore_eos=True)
        assert [choice["index"] for choice in answer["choices"]] == [0, 1]
        assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(("tools", "choice"), [([], None), (None, None), ([TOOL], "none")])
def test_no_call_where_there_can_be_none(client: httpx.Client, tools: Any, choice: Any, streams: bool) -> None:
    body = {"messages": BOOK, "max_tokens": 16, "tools": tools, "tool_choice": choice}
    if streams:
        messages = [chunk["choices"][0]["delta"] for chunk in events(client, CHAT, **body)]
    else:
        messages = [told(client, CHAT, **body)["choices"][0]["message"]]
    assert not any(message.get("tool_calls") for message in messages)


def test_openais_client_without_a_version_in_its_address(server: Server) -> None:
    with OpenAI(base_url=server.url, api_key="any", max_retries=0, timeout=120) as sdk:
        answer = sdk.chat.completions.create(model="gpt-3.5-turbo", messages=BOOK, max_tokens=4)
    assert len(answer.choices) == 1


def test_responses_tell_progress_and_timings(client: httpx.Client) -> None:
    body = {"input": "This is a new test. " * 60, "max_output_tokens": 8, "ignore_eos": True}
    told_events = events(client, "/responses", **body, timings_per_token=True, return_progress=True)
    progress = [event for event in told_events if "prompt_progress" in event]
    assert progress
    for event in progress:
        assert event["type"] == "response.in_progress"
        assert event["prompt_progress"]["total"] >= event["prompt_progress"]["processed"] > 0
        assert event["prompt_progress"]["processed"] >= event["prompt_progress"]["cache"]
    timed = [event for event in told_events if "timings" in event]
    assert all({"prompt_per_second", "predicted_per_second"} <= event["timings"].keys() for event in timed)
    assert "response.output_text.delta" in {event["type"] for event in timed}
    last = told_events[-1]
    assert last["type"] in {"response.completed", "response.incomplete"}
    assert last["response"]["usage"]["output_tokens"] == last["timings"]["predicted_n"]


@pytest.mark.parametrize(
    ("template", "by_itself", "off"),
    [
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "<think>\n", "<think>\n</think>"),
        ("Qwen-Qwen3-0.6B", "<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        ("Qwen-QwQ-32B", "<|im_start|>assistant\n<think>\n", "<|im_start|>assistant\n<think>\n</think>"),
    ],
)
async def test_reasoning_in_the_prompt(
    make_server: MakeServer, llama_templates_dir: Path, template: str, by_itself: str, off: str
) -> None:
    async with make_server(chat_template=llama_templates_dir / f"{template}.jinja", lanes=1) as server:
        with httpx.Client(base_url=server.url, timeout=120) as client:
            for tools in (None, [], [TOOL]):
                asked = {"messages": BOOK[1:], "tools": tools}
                assert told(client, "/apply-template", **asked)["prompt"].endswith(by_itself)
                assert told(client, "/apply-template", **asked, enable_thinking=False)["prompt"].endswith(off)
