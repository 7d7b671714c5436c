"""Chat completions through the official SDK and as raw HTTP, over the packaged model and the real engine."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Literal

import pytest
from openai import AsyncOpenAI, BadRequestError, OpenAI
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel

from tests.http.conftest import MakeServer
from tests.http.serving import Server

WHO = [{"role": "user", "content": "Who are you?"}]
READ_IT = [{"role": "user", "content": "Read the file src/app.py"}]
OPEN = [{"role": "user", "content": "Complete this function:\n```python\ndef go(x):\n```"}]
WILD: Any = {"temperature": 2, "top_p": 1, "extra_body": {"top_k": 0, "min_p": 0}}
READ_FILE: Any = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}
LIST_DIR: Any = {
    "type": "function",
    "function": {
        "name": "list_dir",
        "description": "List a directory",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}


def ask(sdk: OpenAI, messages: Any = WHO, **fields: Any) -> Any:
    return sdk.chat.completions.create(**{"model": "gpt-x", "messages": messages, "temperature": 0, **fields})


def post(server: Server, body: Any, path: str = "/v1/chat/completions") -> tuple[int, bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, {"Content-Type": "application/json"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=120) as response:  # noqa: S310
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def refused(server: Server, path: str = "/v1/chat/completions", **fields: Any) -> dict[str, Any]:
    status, data = post(server, {"messages": WHO, "max_tokens": 4, **fields}, path)
    assert status == 400, data
    error = json.loads(data)["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert isinstance(error, dict)
    return error


def content_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_answer(sdk: OpenAI) -> None:
    answer = ask(sdk)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "gpt-x"
    assert answer.system_fingerprint.startswith("b")
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert "Luce Tiny" in choice.message.content
    assert choice.finish_reason == "stop"
    assert choice.logprobs is None
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.luce["queue_s"] >= 0


def test_stream_says_the_same(sdk: OpenAI) -> None:
    chunks = list(ask(sdk, stream=True, stream_options={"include_usage": True}))
    assert content_of(chunks) == ask(sdk).choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_async(async_sdk: AsyncOpenAI) -> None:
    fields: Any = {"model": "m", "messages": WHO, "temperature": 0}
    answer = await async_sdk.chat.completions.create(**fields)
    stream = await async_sdk.chat.completions.create(stream=True, **fields)
    chunks = [chunk async for chunk in stream]
    assert content_of(chunks) == answer.choices[0].message.content


def test_bytes_of_a_stream(server: Server) -> None:
    """Every event is one `data:` line; the role comes first, [DONE] last."""
    status, data = post(server, {"messages": WHO, "temperature": 0, "max_tokens": 3, "stream": True})
    assert status == 200
    events = data.decode("ascii").split("\n\n")
    assert events.pop() == ""
    assert events.pop() == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert all(set(chunk["choices"][0]["delta"]) == {"content"} for chunk in chunks[1:-1])
    assert chunks[-1]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/chat/completions"])
def test_paths_and_missing_model(server: Server, path: str) -> None:
    status, data = post(server, {"messages": WHO, "max_tokens": 1}, path)
    assert status == 200
    assert json.loads(data)["model"] == "luce-tiny-Q8_0"


def test_second_turn_is_cached(sdk: OpenAI) -> None:
    first = ask(sdk, [{"role": "system", "content": "Be brief. " * 40}, *WHO])
    again = [
        {"role": "system", "content": [{"type": "text", "text": "Be brief. " * 40}]},
        *WHO,
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "What is 7 + 5?"},
    ]
    second = ask(sdk, again)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 8
    assert second.usage.luce["cache_tier"] != "none"


def test_limits(sdk: OpenAI) -> None:
    for fields in ({"max_tokens": 3}, {"max_completion_tokens": 3}, {"max_tokens": 9, "max_completion_tokens": 3}):
        answer = ask(sdk, **fields)
        assert answer.usage.completion_tokens == 3
        assert answer.choices[0].finish_reason == "length"
    assert ask(sdk, max_tokens=10**9).choices[0].finish_reason == "stop"  # clamped to the room that is left
    nothing = ask(sdk, max_tokens=0)
    assert nothing.usage.completion_tokens == 0
    assert nothing.choices[0].message.content == ""


def test_stop_strings_over_pieces(sdk: OpenAI) -> None:
    whole = ask(sdk).choices[0].message.content
    assert len(whole) > 12
    stop = whole[4:12]
    answer = ask(sdk, stop=["never this", stop])
    assert answer.choices[0].message.content == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    chunks = list(ask(sdk, stop=stop, stream=True))
    assert content_of(chunks) == whole[: whole.index(stop)]


@pytest.mark.parametrize("streams", [False, True])
def test_tool_calls(sdk: OpenAI, streams: bool) -> None:
    if streams:
        chunks = list(ask(sdk, READ_IT, tools=[READ_FILE, LIST_DIR], stream=True))
        pieces = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
        first, *rest = pieces
        assert first.type == "function"
        assert all(piece.id is None and piece.function.name is None and piece.index == 0 for piece in rest)
        name, identity = first.function.name, first.id
        arguments = "".join(piece.function.arguments for piece in pieces)
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
    else:
        choice = ask(sdk, READ_IT, tools=[READ_FILE, LIST_DIR]).choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        (call,) = choice.message.tool_calls
        name, identity, arguments = call.function.name, call.id, call.function.arguments
    assert name == "read_file"
    assert identity
    assert json.loads(arguments) == {"path": "src/app.py"}


async def test_arguments_are_streamed_as_they_form(make_server: MakeServer) -> None:
    """With drafts an answer that came before comes in one piece."""
    async with (
        make_server(draft_max=0) as server,
        AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):
        chunks = [chunk async for chunk in await ask(client, READ_IT, tools=[READ_FILE, LIST_DIR], stream=True)]
    assert sum(len(chunk.choices[0].delta.tool_calls or []) for chunk in chunks) > 1


def test_tool_result_comes_back(sdk: OpenAI) -> None:
    first = ask(sdk, READ_IT, tools=[READ_FILE])
    call = first.choices[0].message.tool_calls[0]
    messages = [
        *READ_IT,
        first.choices[0].message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": "print('hello')"},
    ]
    second = ask(sdk, messages, tools=[READ_FILE], max_tokens=8)
    assert second.usage.prompt_tokens_details.cached_tokens > 0


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "list_dir"}}], ids=["required", "named"]
)
def test_forced_calls(sdk: OpenAI, choice: Any) -> None:
    answer = ask(sdk, WHO, tools=[READ_FILE, LIST_DIR], tool_choice=choice, max_tokens=80, parallel_tool_calls=False)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name in {"read_file", "list_dir"} if choice == "required" else {"list_dir"}
    assert answer.choices[0].message.content is None


def test_no_call_where_none_is_wanted(sdk: OpenAI) -> None:
    answer = ask(sdk, READ_IT, tools=[READ_FILE], tool_choice="none", max_tokens=40)
    assert answer.choices[0].message.tool_calls is None


def test_cut_off_call_is_told_by_its_finish(sdk: OpenAI) -> None:
    answer = ask(sdk, READ_IT, tools=[READ_FILE], max_tokens=14)
    assert answer.choices[0].finish_reason == "length"


def test_cut_off_call_can_come_back(sdk: OpenAI) -> None:
    cut_off = {"id": "c", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "sr'}}
    messages = [
        *READ_IT,
        {"role": "assistant", "tool_calls": [cut_off]},
        {"role": "tool", "tool_call_id": "c", "content": "bad JSON"},
    ]
    assert ask(sdk, messages, tools=[READ_FILE], max_tokens=4).choices


def test_legacy_functions(sdk: OpenAI) -> None:
    answer = ask(sdk, READ_IT, functions=[READ_FILE["function"]])
    assert answer.choices[0].finish_reason == "function_call"
    assert answer.choices[0].message.function_call.name == "read_file"


def test_non_function_tools_are_tolerated(sdk: OpenAI) -> None:
    answer = ask(sdk, READ_IT, tools=[{"type": "web_search"}, READ_FILE, {"type": "namespace", "tools": []}])
    assert answer.choices[0].finish_reason == "tool_calls"


class Point(BaseModel):
    """Without a text of free length: so small a model may not end one."""

    x: bool
    colour: Literal["green", "red"]


@pytest.mark.parametrize("streams", [False, True])
def test_json_of_a_schema(sdk: OpenAI, streams: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": Point.model_json_schema()}}
    answer = ask(sdk, response_format=form, max_tokens=200, seed=3, stream=streams)
    text = content_of(list(answer)) if streams else answer.choices[0].message.content
    Point.model_validate_json(text)


def test_json_object_and_llama_servers_ways(server: Server) -> None:
    for fields, prefix in (
        ({"response_format": {"type": "json_object"}}, "{"),
        ({"response_format": {"type": "json_object", "schema": {"const": "42"}}}, '"42"'),
        ({"json_schema": {"const": "42"}}, '"42"'),
    ):
        status, data = post(server, {"messages": WHO, "temperature": 0, "max_tokens": 12, **fields})
        assert status == 200, data
        assert json.loads(data)["choices"][0]["message"]["content"].startswith(prefix), fields


def test_grammar(server: Server) -> None:
    body = {"messages": WHO, "temperature": 0, "max_tokens": 12, "grammar": 'root ::= "a"{5,5}'}
    status, data = post(server, body)
    assert status == 200, data
    assert json.loads(data)["choices"][0]["message"]["content"] == "aaaaa"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "sound"}}, "response_format.type"),
        ({"response_format": {"type": "json_object", "schema": {"type": "hiccup"}}}, None),
        ({"response_format": {"type": "json_object", "schema": {"type": 123}}}, None),
        ({"grammar": "root ::= this is (not valid GBNF"}, None),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"temperature": 3}, "temperature"),
        ({"n": 17}, "n"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, None),
    ],
)
def test_refusals(server: Server, fields: dict[str, Any], param: str | None) -> None:
    error = refused(server, **fields)
    assert error["code"] != "context_length_exceeded"
    if param is not None:
        assert error["param"] == param


async def test_budgets_of_reasoning(make_server: MakeServer, llama_templates_dir: Path) -> None:
    """With a template that begins the reasoning itself, in the prompt."""
    async with make_server(chat_template=llama_templates_dir / "Qwen-QwQ-32B.jinja", ctx=1024, pool=1024) as server:

        def reasoning(**fields: Any) -> int:
            fields = {"messages": WHO, "max_tokens": 24, "temperature": 0, **fields}
            status, data = post(server, fields)
            assert status == 200, data
            usage = json.loads(data)["usage"]
            return int(usage["completion_tokens_details"]["reasoning_tokens"])

        free = reasoning()
        assert free > 4
        assert reasoning(thinking_budget=0) == 0
        assert 0 < reasoning(thinking_budget=3) < free
        assert reasoning(thinking_budget=0, json_schema={"const": 42}) == 0


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_schemas_that_makers_of_tools_write(server: Server, choice: str) -> None:
    for schema in (
        {"type": "object", "properties": {"a": True, "b": {"type": "array", "items": True}}},
        {"type": "object", "properties": {"a": {"type": ["string", "null"], "default": None}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "string"}}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?!x).*$", "format": "uri"}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "additionalProperties": False},
        {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}, "patternProperties": {"^x": True}},
        {},
    ):
        tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
        status, data = post(server, {"messages": WHO, "max_tokens": 2, "tools": tools, "tool_choice": choice})
        assert status == 200, (schema, data)


def test_the_prompt_is_shown_to_those_who_ask(server: Server) -> None:
    for wanted in (True, False, "high"):
        status, data = post(server, {"messages": WHO, "max_tokens": 2, "verbose": wanted})
        assert status == 200
        answer = json.loads(data)
        assert ("__verbose" in answer) == (wanted is True)
        if wanted is True:
            assert answer["__verbose"]["prompt"].endswith("<|im_start|>assistant\n")


def test_a_prompt_without_the_beginning_of_an_answer(server: Server) -> None:
    body = {"messages": WHO, "add_generation_prompt": False}
    status, data = post(server, body, "/apply-template")
    assert status == 200
    assert json.loads(data)["prompt"].endswith("<|im_end|>\n")
    status, data = post(server, {**body, "max_tokens": 8, "temperature": 0})
    assert status == 200, data


def test_images_are_refused_in_the_sdks_words(sdk: OpenAI) -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "data:image/png,"}}]
    with pytest.raises(BadRequestError) as caught:
        ask(sdk, [{"role": "user", "content": parts}])
    assert caught.value.code == "unsupported_content"
    assert caught.value.param == "messages[0].content[1]"


@pytest.mark.parametrize("streams", [False, True])
def test_prompt_that_does_not_fit(server: Server, streams: bool) -> None:
    status, data = post(server, {"messages": WHO * 2000, "stream": streams})
    assert status == 400
    error = json.loads(data)["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["n_prompt_tokens"] > error["n_ctx"] == 4096


def test_logprobs_add_up(sdk: OpenAI) -> None:
    answer = ask(sdk, logprobs=True, top_logprobs=3, max_tokens=8)
    (choice,) = answer.choices
    told = choice.logprobs.content
    assert "".join(token.token for token in told) == choice.message.content
    for token in told:
        assert token.logprob <= 0
        assert bytes(token.bytes).decode() == token.token
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token  # greedy: the likeliest was chosen
    chunks = list(ask(sdk, logprobs=True, top_logprobs=3, max_tokens=8, stream=True))
    streamed = [
        token for chunk in chunks for token in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else [])
    ]
    assert [token.token for token in streamed] == [token.token for token in told]
    assert all(not token.top_logprobs for token in ask(sdk, logprobs=True, max_tokens=2).choices[0].logprobs.content)


def test_seeds_reproduce(sdk: OpenAI) -> None:
    def say(seed: int) -> str:
        answer = ask(sdk, OPEN, seed=seed, max_tokens=24, **WILD)
        return str(answer.choices[0].message.content)

    said = [say(seed) for seed in (1, 2, 3)]
    assert [say(seed) for seed in (1, 2, 3)] == said
    assert len(set(said)) > 1


def test_bias_forbids(sdk: OpenAI, server: Server) -> None:
    first = ask(sdk, logprobs=True, max_tokens=1).choices[0].logprobs.content[0]
    biased = ask(sdk, logit_bias={str(first.id): -100}, logprobs=True, max_tokens=1)
    assert biased.choices[0].logprobs.content[0].id != first.id
    status, data = post(server, {"messages": WHO, "temperature": 0, "max_tokens": 1, "logit_bias": [[first.id, False]]})
    assert status == 200
    assert json.loads(data)["choices"][0]["message"]["content"] == biased.choices[0].message.content


@pytest.mark.parametrize("streams", [False, True])
def test_several_choices(sdk: OpenAI, streams: bool) -> None:
    fields: dict[str, Any] = {"messages": OPEN, "n": 3, "seed": 5, "max_tokens": 12, **WILD}
    texts = ["", "", ""]
    if streams:
        finished = []
        for chunk in ask(sdk, stream=True, **fields):
            (choice,) = chunk.choices
            texts[choice.index] += choice.delta.content or ""
            finished += [choice.index] if choice.finish_reason else []
        assert sorted(finished) == [0, 1, 2]
    else:
        answer = ask(sdk, **fields)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        texts = [choice.message.content for choice in answer.choices]
        assert answer.usage.completion_tokens <= 36
    assert len(set(texts)) > 1


def test_going_on_from_an_assistants_message(sdk: OpenAI) -> None:
    whole = ask(sdk).choices[0].message.content
    begun = whole[: whole.index("Luce")]
    answer = ask(sdk, [*WHO, {"role": "assistant", "content": begun.rstrip()}], max_tokens=2)
    assert answer.choices[0].message.content.strip().startswith("Luce")


def test_every_role_and_unknown_fields(sdk: OpenAI) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        *WHO,
        {"role": "system", "content": "The date is known."},
        {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"},
        {"role": "user", "content": [{"type": "text", "text": "Who"}, {"type": "text", "text": "are you?"}]},
    ]
    extra = {"made_up": {"deep": [1, None]}, "reasoning_effort": "high", "thinking_budget_tokens": 5}
    answer = ask(sdk, messages, max_tokens=4, store=True, metadata={"a": "b"}, user="u", extra_body=extra)
    assert answer.usage.completion_tokens > 0


def test_special_tokens_in_a_message_stay_text(server: Server) -> None:
    spelled = [{"role": "user", "content": "<|im_end|>"}]
    plain = [{"role": "user", "content": ""}]
    counts = [
        json.loads(post(server, {"messages": messages}, "/v1/chat/completions/input_tokens")[1])["input_tokens"]
        for messages in (spelled, plain)
    ]
    assert counts[0] - counts[1] > 3


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"messages": NaN}', b"\xff", b'{"a":' * 5000, b"null"])
def test_hostile_bodies(server: Server, body: bytes) -> None:
    status, data = post(server, body)
    assert status == 400
    assert json.loads(data)["error"]["message"]


def test_progress_as_llama_server_tells_it(server: Server) -> None:
    long = [{"role": "user", "content": "A long and new text. " * 300}]
    check_progress(server, long)
    check_progress(server, long)
    check_progress(server, WHO)  # read too fast for the engine to tell


def check_progress(server: Server, messages: Any) -> None:
    body = {"messages": messages, "max_tokens": 1, "stream": True, "return_progress": True}
    _, data = post(server, body)
    events = [line.removeprefix(b"data: ") for line in data.split(b"\n\n") if line]
    told = [chunk["prompt_progress"] for chunk in map(json.loads, events[:-1]) if "prompt_progress" in chunk]
    assert told
    assert [report["processed"] for report in told] == sorted(report["processed"] for report in told)
    assert len({report["total"] for report in told}) == 1
    assert told[-1]["processed"] == told[-1]["total"]
