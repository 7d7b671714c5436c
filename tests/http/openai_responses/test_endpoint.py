"""The Responses API against the real engine, with OpenAI's own SDK and on the wire."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal

import aiohttp
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from luce.supervisor.http.app import SHUTDOWN_GATE
from luce.supervisor.http.openai_responses.items import unpack_reasoning
from tests.http.conftest import MakeServer
from tests.http.serving import Server

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
ENDLESS: dict[str, Any] = {"input": "Count.", "ignore_eos": True, "stream": True, "store": False}


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as connected:
        yield connected


async def raw_events(session: aiohttp.ClientSession, url: str, body: Any) -> AsyncGenerator[dict[str, Any], None]:
    """Events as they are on the wire, each checked for its name, its number and the SDK's type."""
    n_events = 0
    async with session.post(f"{url}/v1/responses", json=body) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        while block := await response.content.readuntil(b"\n\n"):
            name, data = block.decode().removesuffix("\n\n").split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            assert event["sequence_number"] == n_events
            EVENTS.validate_python(event)
            n_events += 1
            yield event


async def all_events(url: str, body: Any) -> list[dict[str, Any]]:
    async with aiohttp.ClientSession() as session:
        return [event async for event in raw_events(session, url, {**body, "stream": True})]


def test_a_text(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model="gpt-4.1",
        input=[{"role": "system", "content": "Book"}, {"role": "user", "content": "What is the best book"}],
        max_output_tokens=8,
        temperature=0.8,
        metadata={"purpose": "test"},
    )
    assert response.id.startswith("resp_")
    assert response.model == "gpt-4.1"
    assert response.metadata == {"purpose": "test"}
    (item,) = response.output
    assert item.type == "message"
    assert item.id.startswith("msg_")
    assert response.output_text
    assert response.usage is not None
    assert response.usage.output_tokens <= 8
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_a_stream_says_what_the_whole_does(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "m", "input": "Say something.", "temperature": 0, "max_output_tokens": 12}
    whole = client.responses.create(**asked)
    texts, final = [], None
    for event in client.responses.create(**asked, stream=True):
        if event.type == "response.output_text.delta":
            texts.append(event.delta)
        if event.type in {"response.completed", "response.incomplete"}:
            final = event.response
    assert final is not None
    assert "".join(texts) == final.output_text == whole.output_text
    assert final.status == whole.status


async def test_the_order_of_events(server: Server) -> None:
    events = await all_events(server.url, {"input": "Hello there", "temperature": 0, "max_output_tokens": 64})
    kinds = [event["type"] for event in events]
    n_deltas = kinds.count("response.output_text.delta")
    assert n_deltas >= 1
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * n_deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


async def test_the_async_sdk(server: Server) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        response = await client.responses.create(model="m", input="Hello there", max_output_tokens=64)
        assert response.status == "completed"
        async with client.responses.stream(model="m", input="Hello there", max_output_tokens=64) as stream:
            deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()
        assert "".join(deltas) == final.output_text


def test_a_tool_is_called_and_answered_and_the_prefix_is_kept(client: openai.OpenAI) -> None:
    conversation: list[Any] = [{"role": "user", "content": "What is the weather in Rome?"}]
    asked: dict[str, Any] = {"model": "m", "tools": [WEATHER], "temperature": 0, "prompt_cache_key": "rome"}
    first = client.responses.create(
        input=conversation, tool_choice={"type": "function", "name": "get_weather"}, max_output_tokens=64, **asked
    )
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert call.name == "get_weather"
    assert set(json.loads(call.arguments)) == {"city"}
    conversation += [item.model_dump(exclude_none=True) for item in first.output]
    conversation.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
    second = client.responses.create(input=conversation, max_output_tokens=4, **asked)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens
    assert second.usage.model_extra is not None
    assert second.usage.model_extra["luce"]["cache_tier"] == "resident"


async def test_calls_stream_as_they_form(server: Server) -> None:
    body = {"input": "Weather in Rome?", "tools": [WEATHER], "tool_choice": "required", "max_output_tokens": 64}
    events = await all_events(server.url, body)
    output = events[-1]["response"]["output"]
    (call,) = [item for item in output if item["type"] == "function_call"]
    deltas = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == call["arguments"]


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_so_many_calls_and_no_more(server: Server, limit: int) -> None:
    """The grammar writes three; one beyond the limit ends the answer, and nothing of it is told."""
    cities = ["Rome", "Oslo", "Graz"]
    arguments = [json.dumps({"name": "get_weather", "arguments": {"city": city}}) for city in cities]
    calls = [f"<tool_call>\n{call}\n</tool_call>" for call in arguments]
    body = {
        "input": "Weather?",
        "tools": [WEATHER],
        "grammar": f"root ::= {json.dumps(''.join(calls))}",
        "max_tool_calls": limit,
    }
    events = await all_events(server.url, body)
    response = events[-1]["response"]
    assert (response["status"], response["max_tool_calls"]) == ("completed", limit)
    told = [json.loads(item["arguments"])["city"] for item in response["output"] if item["type"] == "function_call"]
    assert told == cities[:limit]
    begun = [event for event in events if event["type"] == "response.output_item.added"]
    assert [event["item"]["type"] for event in begun] == ["function_call"] * min(limit, 3)


async def test_a_custom_tool_gets_its_text(server: Server) -> None:
    tool = {"type": "custom", "name": "note", "description": "Writes a note."}
    choice = {"type": "custom", "name": "note"}
    body = {"input": "Note something.", "tools": [tool], "tool_choice": choice, "max_output_tokens": 48}
    events = await all_events(server.url, body)
    (call,) = [item for item in events[-1]["response"]["output"] if item["type"] == "custom_tool_call"]
    done = [event["input"] for event in events if event["type"] == "response.custom_tool_call_input.done"]
    assert done == [call["input"]]


async def test_a_namespaces_tool_keeps_its_name(server: Server) -> None:
    tools = [{"type": "namespace", "name": "agents", "description": "…", "tools": [WEATHER]}, {"type": "web_search"}]
    body = {"input": "Weather?", "tools": tools, "tool_choice": "required", "max_output_tokens": 64}
    events = await all_events(server.url, body)
    (call,) = [item for item in events[-1]["response"]["output"] if item["type"] == "function_call"]
    assert (call["namespace"], call["name"]) == ("agents", "get_weather")


class City(BaseModel):
    name: Literal["Rome", "Oslo"]
    is_large: bool


def test_structured_answers(client: openai.OpenAI) -> None:
    text: Any = {"format": {"type": "json_schema", "name": "city", "schema": City.model_json_schema()}}
    response = client.responses.create(model="m", input="Name a city.", text=text, max_output_tokens=200)
    assert City.model_validate_json(response.output_text).name in {"Rome", "Oslo"}
    parsed = client.responses.parse(model="m", input="Name a city.", text_format=City)
    assert isinstance(parsed.output_parsed, City)


def test_logprobs(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model="m", input="Hello", include=["message.output_text.logprobs"], top_logprobs=2, max_output_tokens=4
    )
    (item,) = response.output
    assert item.type == "message"
    (part,) = item.content
    assert part.type == "output_text"
    assert part.logprobs
    assert all(len(token.top_logprobs) == 2 for token in part.logprobs)


def test_responses_are_kept_and_chained(client: openai.OpenAI) -> None:
    first = client.responses.create(model="m", input="My name is Ada.", instructions="Be brief.", max_output_tokens=6)
    second = client.responses.create(
        model="m", input="What is my name?", previous_response_id=first.id, max_output_tokens=4
    )
    assert second.previous_response_id == first.id
    assert client.responses.retrieve(first.id).output == first.output
    asked = client.responses.input_items.list(second.id, order="asc").data
    assert [item.type for item in asked] == ["message", "message", "message"]
    page = client.responses.input_items.list(second.id, limit=1)
    assert len(page.data) == 1
    assert page.has_more
    counted = client.responses.input_tokens.count(model="m", input="What is my name?", previous_response_id=first.id)
    assert second.usage is not None
    assert counted.input_tokens == second.usage.input_tokens
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as refusal:
        client.responses.create(model="m", input="And?", previous_response_id=second.id)
    assert refusal.value.code == "previous_response_not_found"


def test_items_that_are_kept_can_be_referred_to(client: openai.OpenAI) -> None:
    """As Vercel's AI SDK does with what was stored."""
    first = client.responses.create(model="m", input="Hello there", max_output_tokens=16, temperature=0)
    (item,) = first.output
    assert item.type == "message"
    question: Any = {"role": "user", "content": "Hello there"}
    more: Any = {"role": "user", "content": "And?"}
    by_name: list[Any] = [question, {"type": "item_reference", "id": item.id}, more]
    by_value: list[Any] = [question, {"role": "assistant", "content": first.output_text}, more]
    counts = [client.responses.input_tokens.count(model="m", input=items) for items in (by_name, by_value)]
    assert counts[0].input_tokens == counts[1].input_tokens


def test_store_false_keeps_nothing(client: openai.OpenAI) -> None:
    response = client.responses.create(model="m", input="Hello", store=False, max_output_tokens=2)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        client.responses.create(model="m", input="word " * 6000, stream=True)
    assert refusal.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    "body",
    [
        {"input": None},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,"}]}]},
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
        {"input": "hi", "background": True, "store": False},
        {"input": "hi", "previous_response_id": "resp_\u2603/../../etc/passwd"},
        {"input": "hi", "tools": [{"type": "function"}]},
        {"input": "hi", "text": {"format": {"type": "json_schema", "schema": {"type": "nonsense"}}}},
        {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{not json"}] * 3},
        {"input": [{"type": "function_call_output", "call_id": "nobody", "output": "x"}]},
        {"input": [{"type": "reasoning", "summary": []}]},
        {"input": "hi", "logit_bias": "x"},
        {"input": "hi", "model": "\ud83d"},
    ],
)
@pytest.mark.parametrize("streams", [False, True])
async def test_hostile_bodies_get_an_answer_or_a_refusal(server: Server, body: Any, streams: bool) -> None:
    raw = json.dumps({"max_output_tokens": 2, **body, "stream": streams})
    async with aiohttp.ClientSession() as session, session.post(f"{server.url}/v1/responses", data=raw) as response:
        text = await response.text()
        assert response.status in {200, 400}, text
        if response.status == 400:
            error = json.loads(text)["error"]
            assert error["type"] == "invalid_request_error"
            assert error["message"]


async def test_reasoning_is_an_item_of_its_own(make_server: MakeServer, llama_templates_dir: Path) -> None:
    """With a template that makes the model reason at once, and a budget that ends it."""
    body = {
        "input": "Hello there",
        "reasoning": {"max_tokens": 6},
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 24,
        "temperature": 0,
    }
    async with make_server(chat_template=llama_templates_dir / "Qwen-QwQ-32B.jinja") as server:
        events = await all_events(server.url, body)
    kinds = [event["type"] for event in events]
    n_deltas = kinds.count("response.reasoning_text.delta")
    assert n_deltas >= 1
    assert kinds[2 : 7 + n_deltas] == [
        "response.output_item.added",
        "response.content_part.added",
        *["response.reasoning_text.delta"] * n_deltas,
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    response = events[-1]["response"]
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    reasoning = response["output"][0]
    assert unpack_reasoning(reasoning["encrypted_content"]) == reasoning["content"][0]["text"] != ""
    assert 0 < response["usage"]["output_tokens_details"]["reasoning_tokens"] < 24


async def test_signs_of_life_while_a_request_waits(make_server: MakeServer) -> None:
    """Typed events, and the first ones before anything is computed: another request has the only lane."""
    async with make_server(lanes=1, ctx=8192, keep_alive_s=0.05) as server, aiohttp.ClientSession() as session:
        async with aclosing(raw_events(session, server.url, ENDLESS)) as other:
            async for event in other:
                if event["type"] == "response.output_text.delta":
                    break
            body = {"input": "Hello there", "stream": True, "max_output_tokens": 4}
            waiting = aiter(raw_events(session, server.url, body))
            kinds = [(await anext(waiting))["type"] for _ in range(5)]
            assert kinds == ["response.created", *["response.in_progress"] * 4]
        rest = [event["type"] async for event in waiting]
        assert rest[-1] in {"response.completed", "response.incomplete"}


async def test_a_stream_that_cannot_go_on_fails(make_server: MakeServer) -> None:
    async with make_server(ctx=16384) as server, aiohttp.ClientSession() as session:
        events = raw_events(session, server.url, {**ENDLESS, "store": True})
        async for event in events:
            if event["type"] == "response.output_text.delta":
                server.loop.call_soon_threadsafe(server.app[SHUTDOWN_GATE].interrupt)
                break
        rest = [event async for event in events]
    assert rest[-1]["type"] == "response.failed"
    assert rest[-1]["response"]["error"]["code"] == "server_error"
    assert {event["type"] for event in rest[:-1]} <= {"response.output_text.delta"}


async def test_keys_have_their_own_responses(make_server: MakeServer) -> None:
    async with make_server(api_keys=("one", "two")) as server:
        clients = [
            openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) for key in ("one", "two")
        ]
        mine, other = clients
        response: Response = await mine.responses.create(model="m", input="Hello", max_output_tokens=2)
        assert (await mine.responses.retrieve(response.id)).id == response.id
        with pytest.raises(openai.NotFoundError):
            await other.responses.retrieve(response.id)
        with pytest.raises(openai.BadRequestError):
            await other.responses.create(model="m", input="And?", previous_response_id=response.id)
        for client in clients:
            await client.close()


async def test_a_conversation_that_is_too_long_loses_what_came_first(make_server: MakeServer) -> None:
    """Only if it is asked for; and most next turns find what the one before has read."""
    turns = [
        {"role": role, "content": f"{number} " + "word " * 60}
        for number in range(30)
        for role in ("user", "assistant")
    ]  # fmt: skip
    body = {"instructions": "Be brief.", "max_output_tokens": 4, "store": False}
    async with make_server(ctx=1024, pool=4096) as server, aiohttp.ClientSession(server.url) as session:

        async def ask(turns: list[dict[str, str]], **fields: str) -> tuple[int, dict[str, Any]]:
            asked = body | {"input": [*turns, {"role": "user", "content": "Well?"}]} | fields
            async with session.post("/v1/responses", json=asked) as answer:
                return answer.status, await answer.json()

        status, refused = await ask(turns)
        assert (status, refused["error"]["code"]) == (400, "context_length_exceeded")
        status, first = await ask(turns, truncation="auto")
        assert (status, first["truncation"]) == (200, "auto")
        assert 256 < first["usage"]["input_tokens"] <= 1024
        shares = []
        for n_turns in range(50, 60, 2):
            status, response = await ask(turns[:n_turns], truncation="auto")
            assert status == 200
            usage = response["usage"]
            shares.append(usage["input_tokens_details"]["cached_tokens"] / usage["input_tokens"])
        assert sum(share > 0.5 for share in shares[1:]) >= 2, shares
