"""The Messages API as the official SDK and bare connections see it, over a real engine."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic, beta_tool
from anthropic.types import RawMessageStreamEvent, ToolParam
from pydantic import TypeAdapter

from luce.supervisor.http.anthropic.opaque import MAX_RESTORED_BYTES, reasoning_of
from luce.supervisor.http.app import SHUTDOWN_GATE
from tests.http.conftest import MakeServer
from tests.http.serving import Server

EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
CLAUDE_CODE = Path(__file__).parents[2] / "data" / "clients" / "claude_code.json"
HELLO: Any = [{"role": "user", "content": "Hello, tell me a story"}]
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Graz", "Wien"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: ToolParam = {"name": "weather", "description": "of a city", "input_schema": SCHEMA}
TIMEOUT_S = 120.0
GREEDY: dict[str, Any] = {"temperature": 0}  # the SDK has no argument for it any more


@pytest.fixture
def client(server: Server) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key="any", max_retries=0, timeout=TIMEOUT_S) as made:
        yield made


def post(server: Server, body: Any, path: str = "/v1/messages") -> tuple[int, dict[str, str], bytes]:
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=TIMEOUT_S)
    data = body if isinstance(body, bytes) else json.dumps(body)
    connection.request("POST", path, data, {"Content-Type": "application/json"})
    response = connection.getresponse()
    read = response.read()
    connection.close()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, read


def events_of(data: bytes) -> list[dict[str, Any]]:
    events = []
    for block in data.decode().removesuffix("\n\n").split("\n\n"):
        name, payload = block.split("\n")
        value = json.loads(payload.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        events.append(value)
    return events


def test_who_names_no_model_is_told_which_one_answers(server: Server) -> None:
    body = {"max_tokens": 1, "messages": HELLO}
    _, _, data = post(server, body)
    _, _, streamed = post(server, {**body, "stream": True})
    assert json.loads(data)["model"] == events_of(streamed)[0]["message"]["model"] == "luce-tiny-Q8_0"


def test_a_message(client: Anthropic) -> None:
    message = client.messages.create(model="claude-of-tomorrow", extra_body=GREEDY, max_tokens=20, messages=HELLO)
    assert (message.model, message.role, message.type, message.stop_reason) == (
        "claude-of-tomorrow",
        "assistant",
        "message",
        "end_turn",
    )
    (block,) = message.content
    assert block.type == "text"
    assert block.text
    assert message.id.startswith("msg_")
    assert message.usage.output_tokens > 0


def test_a_stream_adds_up_to_the_message(client: Anthropic) -> None:
    options: dict[str, Any] = {"model": "m", "extra_body": GREEDY, "max_tokens": 20, "messages": HELLO}
    plain = client.messages.create(**options)
    with client.messages.stream(**options) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    assert plain.content[0].type == streamed.content[0].type == "text"
    assert text == streamed.content[0].text == plain.content[0].text
    assert streamed.stop_reason == plain.stop_reason
    usage = streamed.usage
    assert usage.cache_read_input_tokens
    count = client.messages.count_tokens(model="m", messages=HELLO)
    assert usage.input_tokens + usage.cache_read_input_tokens == count.input_tokens


def test_raw_events_are_the_originals_in_its_order(server: Server) -> None:
    status, headers, data = post(server, {"model": "m", "max_tokens": 20, "messages": HELLO, "stream": True})
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    events = events_of(data)
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert set(kinds[3:-3]) <= {"content_block_delta", "ping"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    for event in events:
        if event["type"] != "ping":
            EVENT.validate_python(event)
    assert events[0]["message"]["usage"]["input_tokens"] > 0


async def test_both_ways_asynchronously(server: Server) -> None:
    async with AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0, timeout=TIMEOUT_S) as client:
        options: dict[str, Any] = {"model": "m", "extra_body": GREEDY, "max_tokens": 12, "messages": HELLO}
        plain = await client.messages.create(**options)
        async with client.messages.stream(**options) as stream:
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_message()
        events = [event.type async for event in await client.messages.create(**options, stream=True)]
    assert streamed.content[0].to_dict() == plain.content[0].to_dict()
    assert kinds[0] == events[0] == "message_start"
    assert kinds[-1] == events[-1] == "message_stop"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_tool_is_called(client: Anthropic, choice: Any) -> None:
    question: Any = [{"role": "user", "content": "What is the weather in Graz?"}]
    options: dict[str, Any] = {
        "model": "m",
        "extra_body": GREEDY,
        "max_tokens": 80,
        "tools": [WEATHER],
        "tool_choice": choice,
    }
    message = client.messages.create(**options, messages=question)
    assert message.stop_reason == "tool_use"
    use = message.content[-1]
    assert use.type == "tool_use"
    assert use.name == "weather"
    assert use.input in [{"city": "Graz"}, {"city": "Wien"}]
    with client.messages.stream(**options, messages=question) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        streamed = stream.get_final_message()
    assert streamed.stop_reason == "tool_use"
    assert streamed.content[-1].type == "tool_use"
    assert json.loads("".join(parts)) == streamed.content[-1].input
    result: Any = {"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}
    after = client.messages.create(
        model="m",
        max_tokens=20,
        tools=[WEATHER],
        messages=[*question, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}],
    )
    assert after.usage.cache_read_input_tokens


def test_the_sdks_tool_runner(client: Anthropic) -> None:
    asked: list[str] = []

    @beta_tool  # type: ignore[untyped-decorator]  # the SDK is not looked into
    def weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: its name
        """
        asked.append(city)
        return "sunny"

    runner = client.beta.messages.tool_runner(
        model="m",
        max_tokens=80,
        tools=[weather],
        max_iterations=2,
        extra_body=GREEDY,
        messages=[{"role": "user", "content": "What is the weather in Graz?"}],
    )
    messages = list(runner)
    assert messages[0].stop_reason == "tool_use"
    assert asked
    assert len(messages) == 2


def test_a_truncated_call_ends_with_max_tokens(client: Anthropic) -> None:
    with client.messages.stream(
        model="m", extra_body=GREEDY, max_tokens=14, tools=[WEATHER], tool_choice={"type": "any"}, messages=HELLO
    ) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "max_tokens"


def test_structured_outputs(client: Anthropic) -> None:
    message = client.messages.create(
        model="m",
        extra_body=GREEDY,
        max_tokens=60,
        messages=HELLO,
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    )
    assert message.content[0].type == "text"
    assert json.loads(message.content[0].text) in [{"city": "Graz"}, {"city": "Wien"}]


def test_a_stop_sequence(client: Anthropic) -> None:
    whole = client.messages.create(model="m", extra_body=GREEDY, max_tokens=20, messages=HELLO).content[0]
    assert whole.type == "text"
    stop = whole.text[4:8]
    message = client.messages.create(
        model="m", extra_body=GREEDY, max_tokens=20, messages=HELLO, stop_sequences=["no such", stop]
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert message.content[0].type == "text"
    assert message.content[0].text == whole.text[: whole.text.index(stop)]


@pytest.mark.parametrize("max_tokens", [0, 3, 2_000_000_000])
def test_limits(client: Anthropic, max_tokens: int) -> None:
    body: dict[str, Any] = {"model": "m", "extra_body": GREEDY, "max_tokens": max_tokens, "messages": HELLO}
    message = client.messages.create(**body, timeout=TIMEOUT_S)  # the SDK wants a timeout for large ones
    assert message.usage.output_tokens <= max_tokens
    if max_tokens < 10:
        assert message.stop_reason == "max_tokens"


def test_an_answer_that_is_begun(client: Anthropic) -> None:
    begun: Any = {"role": "assistant", "content": "one, two,"}
    message = client.messages.create(model="m", max_tokens=5, messages=[*HELLO, begun])
    assert message.content[0].type == "text"
    assert not message.content[0].text.startswith("one")


def test_counting_counts_all_that_is_in_a_prompt(client: Anthropic) -> None:
    def count(**body: Any) -> int:
        n_tokens: int = client.messages.count_tokens(**{"model": "m", "messages": HELLO, **body}).input_tokens
        return n_tokens

    assert 0 < count() < count(system="be brief") < count(system="be brief", tools=[WEATHER])
    assert count(system="be brief") == count(system=[{"type": "text", "text": "be brief"}])


def test_refusals_have_the_originals_shape(client: Anthropic) -> None:
    picture: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": [picture]}])
    error = caught.value
    assert isinstance(error.body, dict)
    assert error.body["type"] == "error"
    assert error.body["error"]["type"] == "invalid_request_error"
    assert "image input is not supported" in error.body["error"]["message"]
    assert error.request_id == error.body["request_id"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_does_not_fit(server: Server, stream: bool) -> None:
    long = [{"role": "user", "content": "a " * 9000}]
    status, _, data = post(server, {"model": "m", "max_tokens": 5, "messages": long, "stream": stream})
    assert status == 400
    error = json.loads(data)["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("prompt is too long: 9")
    assert error["message"].endswith("tokens > 4096 maximum")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"messages": NaN}',
        b'{"messages": [], "max_tokens": 1}',
        b'{"max_tokens": 1, "max_tokens": 2, "messages": []}',
        b'{"a":' * 200 + b"1" + b"}" * 200,
        {"messages": HELLO},
        {"max_tokens": 1},
        {"messages": HELLO, "max_tokens": 1, "output_format": {"type": "json_schema", "schema": {"type": "nothing"}}},
        {"messages": HELLO, "max_tokens": 1, "stop_sequences": [""]},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_hostile_bodies_get_a_clear_refusal(server: Server, body: Any, stream: bool) -> None:
    status, headers, data = post(server, {**body, "stream": stream} if isinstance(body, dict) else body)
    assert status == 400
    error = json.loads(data)
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert error["error"]["message"]
    assert error["request_id"] in headers.values()


def test_unknown_fields_queries_and_headers_are_tolerated(client: Anthropic) -> None:
    message = client.beta.messages.create(
        model="m",
        max_tokens=5,
        messages=HELLO,
        betas=["context-management-2025-06-27", "no-such-beta"],
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        extra_body={"of_tomorrow": {"a": [1]}},
        extra_headers={"x-of-tomorrow": "1"},
        extra_query={"beta": "true"},
    )
    assert message.content


@pytest.fixture(scope="module")
def agents_server(tiny_model: Path) -> Iterator[Server]:
    running = Server(tiny_model, {"ctx": 16384, "pool": 40_960})
    try:
        yield running.start()
    finally:
        running.stop()


def claude_code(step: str) -> dict[str, Any]:
    requests = json.loads(CLAUDE_CODE.read_text())["requests"]
    body: dict[str, Any] = next(request["body"] for request in requests if request["step"] == step)
    return {**body, **GREEDY, "max_tokens": 8}


def usage_of(server: Server, step: str) -> dict[str, Any]:
    status, _, data = post(server, claude_code(step), "/v1/messages?beta=true")
    assert status == 200
    events = events_of(data)
    assert events[-1]["type"] == "message_stop"
    usage: dict[str, Any] = events[-2]["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == events[0]["message"]["usage"]["input_tokens"]
    return usage


def test_claude_codes_turns_and_sessions_share_what_they_can(agents_server: Server) -> None:
    first = usage_of(agents_server, "first_turn")
    n_first = first["input_tokens"] + first["cache_read_input_tokens"]
    second = usage_of(agents_server, "second_turn")
    assert second["cache_read_input_tokens"] >= n_first - 8  # but for the start of the answer
    third = usage_of(agents_server, "second_turn_tool_result")
    assert third["cache_read_input_tokens"] > n_first
    # another first message, and with it another suffix of the billing header: the tools and the system text are shared
    other = usage_of(agents_server, "second_session")
    assert other["cache_read_input_tokens"] > n_first * 0.7


@contextmanager
def open_stream(server: Server, path: str, body: dict[str, Any]) -> Iterator[http.client.HTTPResponse]:
    address = urlsplit(server.url)
    with closing(http.client.HTTPConnection(address.hostname or "", address.port, timeout=TIMEOUT_S)) as connection:
        connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
        with connection.getresponse() as response:
            assert response.status == 200
            yield response


@contextmanager
def busy(server: Server) -> Iterator[None]:
    """A stream that generates as long as this lasts."""
    with open_stream(server, "/v1/completions", {"prompt": "a", "max_tokens": 100_000, "ignore_eos": True}) as stream:
        assert stream.readline()
        yield


@pytest.fixture(scope="module")
def one_lane(tiny_model: Path) -> Iterator[Server]:
    running = Server(tiny_model, {"ctx": 16384, "pool": 20_480, "lanes": 1, "keep_alive_s": 0.2})
    try:
        yield running.start()
    finally:
        running.stop()


def test_a_stream_that_waits_shows_signs_of_life_and_its_retry_is_served(one_lane: Server) -> None:
    """The lane is busy: what a client sees is what it sees while a long prompt is read."""
    body = {"model": "m", "max_tokens": 4, "messages": HELLO}
    with ThreadPoolExecutor() as threads, open_stream_behind_another(one_lane, body) as (waiting, free_the_lane):
        seen: list[bytes] = []
        while seen.count(b"event: ping\n") < 3:
            seen.append(waiting.readline())
        assert seen[0] == b"event: message_start\n"
        assert b"event: content_block_start\n" not in seen
        retry = threads.submit(post, one_lane, body)  # the old connection is still open
        free_the_lane()
        status, _, data = retry.result(TIMEOUT_S)
    assert status == 200
    assert json.loads(data)["content"][0]["text"]


def test_a_stream_that_cannot_be_served_to_its_end_ends_with_an_error(one_lane: Server) -> None:
    """The last test of this server: it serves nobody afterwards."""
    body = {"model": "m", "max_tokens": 4, "messages": HELLO}
    with open_stream_behind_another(one_lane, body) as (waiting, _):
        begun = waiting.readline()
        one_lane.loop.call_soon_threadsafe(one_lane.app[SHUTDOWN_GATE].interrupt)
        events = events_of(begun + waiting.read())
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["type"] == "overloaded_error"
    assert {event["type"] for event in events[:-1]} <= {"message_start", "ping"}


@contextmanager
def open_stream_behind_another(
    server: Server, body: dict[str, Any]
) -> Iterator[tuple[http.client.HTTPResponse, Callable[[], None]]]:
    """A stream that waits for its turn, and what gives it one."""
    with ExitStack() as blocker:
        blocker.enter_context(busy(server))
        with open_stream(server, "/v1/messages", body) as waiting:
            yield waiting, blocker.close


@pytest.mark.parametrize("hidden", [False, True])
async def test_thinking_is_a_block_of_its_own_and_comes_back(
    make_server: MakeServer, llama_templates_dir: Path, hidden: bool
) -> None:
    template = llama_templates_dir / "Qwen3.5-4B.jinja"
    async with (
        make_server(chat_template=template) as server,
        AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0, timeout=TIMEOUT_S) as client,
    ):
        thinking: Any = {"type": "enabled", "budget_tokens": 2, **({"display": "omitted"} if hidden else {})}
        body: dict[str, Any] = {
            "model": "m",
            "max_tokens": 16,
            "messages": HELLO,
            "thinking": thinking,
            "extra_body": GREEDY,
        }
        async with client.messages.stream(**body) as stream:
            kinds = [event.type async for event in stream]
            message = await stream.get_final_message()
        assert [block.type for block in message.content] == ["thinking", "text"]
        assert "signature" in kinds
        thought = message.content[0]
        assert thought.type == "thinking"
        assert bool(thought.thinking) is not hidden
        if hidden:
            assert reasoning_of(thought.signature, MAX_RESTORED_BYTES)
        use: Any = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}
        gave: Any = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}
        turns = [
            [*HELLO, {"role": "assistant", "content": [*before, use]}, {"role": "user", "content": [gave]}]
            for before in ([], [thought])
        ]
        without, with_thought = [
            (await client.messages.count_tokens(model="m", messages=messages)).input_tokens for messages in turns
        ]
        assert with_thought > without


def _with_results(n: int) -> list[Any]:
    turns: list[Any] = [*HELLO]
    for number in range(n):
        use = {"type": "tool_use", "id": f"toolu_{number}", "name": "weather", "input": {"city": "Graz"}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": f"{number} " + "rain " * 30}
        turns += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    return turns


@pytest.mark.parametrize("streams", [False, True])
def test_old_results_are_cleared_if_the_client_wants_it(server: Server, streams: bool) -> None:
    """`context_management.edits` was read by nobody."""
    trigger, keep = {"type": "input_tokens", "value": 200}, {"type": "tool_uses", "value": 2}
    edit = {"type": "clear_tool_uses_20250919", "trigger": trigger, "keep": keep}
    body = {"model": "m", "max_tokens": 2, "messages": _with_results(6), "tools": [WEATHER], "stream": streams}

    def ask(**fields: Any) -> tuple[int, Any]:
        status, _, data = post(server, body | fields)
        assert status == 200, data
        told = json.loads(data) if not streams else next(e for e in events_of(data) if e["type"] == "message_delta")
        usage = told["usage"]
        return usage["input_tokens"] + usage["cache_read_input_tokens"], told.get("context_management")

    n_whole, told = ask()
    assert told is None
    n_edited, told = ask(context_management={"edits": [edit]})
    (applied,) = told["applied_edits"]
    assert applied["cleared_tool_uses"] == 4
    assert applied["cleared_input_tokens"] == n_whole - n_edited > 80
    for other in (
        {**edit, "trigger": {"type": "input_tokens", "value": 100_000}},
        {**edit, "trigger": {"type": "tool_uses", "value": 6}},
        {**edit, "clear_at_least": {"type": "input_tokens", "value": 100_000}},
        {**edit, "exclude_tools": ["weather"]},
        {"type": "clear_thinking_20251015", "keep": "all"},
    ):
        assert ask(context_management={"edits": [other]}) == (n_whole, None), other
