"""An answer as the events of Anthropic's stream: their order, and what the official SDK makes of them. No server."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from luce.supervisor.http.answering.answer_events import (
    AnswerEvent,
    AnswerFinished,
    ChoiceFinished,
    ContentPiece,
    FinishedToolCall,
    FinishReason,
    Progress,
    ReasoningPiece,
    ToolCallPiece,
)
from luce.supervisor.http.anthropic.events import PING, MessageStream, message_json
from luce.supervisor.http.anthropic.opaque import MAX_RESTORED_BYTES, reasoning_of
from luce.supervisor.http.errors import ApiError, ErrorKind
from tests.http.usages import usage

EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
USAGE = usage(n_prompt=100, n_cached=60, cache_miss="differs_at:60", n_generated=9, n_reasoning=4)


def finished(
    reason: FinishReason = FinishReason.STOP,
    *,
    content: str = "",
    reasoning: str = "",
    calls: Sequence[FinishedToolCall] = (),
    stop: str | None = None,
) -> ChoiceFinished:
    return ChoiceFinished(
        choice=0, reason=reason, stop_text=stop, content=content, reasoning=reasoning, tool_calls=calls, logprobs=()
    )


def whole(*pieces: AnswerEvent, reason: FinishReason = FinishReason.STOP, stop: str | None = None) -> list[AnswerEvent]:
    return [*pieces, finished(reason, stop=stop), AnswerFinished(USAGE)]


def text(piece: str) -> ContentPiece:
    return ContentPiece(0, piece)


def thought(piece: str) -> ReasoningPiece:
    return ReasoningPiece(0, piece)


def call(index: int, arguments: str, *, identifier: str = "", name: str = "") -> ToolCallPiece:
    return ToolCallPiece(0, index, identifier, name, arguments)


def parse(data: bytes) -> list[dict[str, Any]]:
    """Events of whole writes; each names its type twice, as the original does."""
    assert data.endswith(b"\n\n")
    assert data.isascii()
    events = []
    for block in data.decode().removesuffix("\n\n").split("\n\n"):
        name, payload = block.split("\n")
        value = json.loads(payload.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        events.append(value)
    return events


def stream(events: Sequence[AnswerEvent], *, hides_thinking: bool = False) -> list[dict[str, Any]]:
    message = MessageStream("msg_1", "req_1", "claude-x", hides_thinking=hides_thinking)
    data = [message.first(100), *map(message.feed, events)]
    return parse(b"".join(data))


def shapes(events: Sequence[dict[str, Any]]) -> list[str]:
    """The order of events, with blocks' indexes; equal neighbours once."""
    shown: list[str] = []
    for event in events:
        inner = event.get("content_block") or event.get("delta") or {}
        one = " ".join(str(part) for part in (event["type"], event.get("index"), inner.get("type")) if part is not None)
        if not shown or shown[-1] != one:
            shown.append(one)
    return shown


def accumulate(events: Sequence[dict[str, Any]]) -> Message:
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in events:
        if event["type"] != "ping":
            snapshot = accumulate_event(
                event=EVENT.validate_python(event), current_snapshot=snapshot, json_bufs=buffers
            )
    return Message.model_validate(snapshot.to_dict())


def test_a_text_in_the_order_of_the_original() -> None:
    events = stream(whole(Progress(0, 100), text("Hel"), text("lo")))
    assert shapes(events) == [
        "message_start",
        "ping",
        "content_block_start 0 text",
        "content_block_delta 0 text_delta",
        "content_block_stop 0",
        "message_delta",
        "message_stop",
    ]
    start = events[0]["message"]
    assert (start["content"], start["stop_reason"], start["model"]) == ([], None, "claude-x")
    assert start["usage"]["input_tokens"] == 100
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert accumulate(events).content[0].to_dict() == {"type": "text", "text": "Hello"}


def test_usage_adds_up_to_the_prompt() -> None:
    usage = accumulate(stream(whole(text("x")))).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (40, 60, 0)
    assert usage.output_tokens == 9
    assert usage.output_tokens_details is not None
    assert usage.output_tokens_details.thinking_tokens == 4


def test_one_token_is_input_even_if_all_were_cached() -> None:
    message = MessageStream("msg_1", "req_1", "m", hides_thinking=False)
    ends: list[AnswerEvent] = [finished(), AnswerFinished(dataclasses.replace(USAGE, n_cached=100))]
    usage = accumulate(parse(b"".join([message.first(100), *map(message.feed, ends)]))).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (1, 99)


def test_usage_says_why_the_cache_did_not_serve_more() -> None:
    luce = stream(whole(text("x")))[-2]["usage"]["luce"]
    assert (luce["cache_tier"], luce["cache_miss"]) == ("resident", "differs_at:60")


def test_thinking_then_text_then_calls() -> None:
    events = stream(
        whole(
            thought("so "),
            thought("far"),
            text("\n"),
            text("look:"),
            call(0, "", identifier="call_a", name="weather"),
            call(0, '{"city":'),
            call(0, '"Graz"}'),
            call(1, "{}", identifier="functions.time:1", name="time"),
            reason=FinishReason.TOOL_CALLS,
        )
    )
    assert shapes(events) == [
        "message_start",
        "ping",
        "content_block_start 0 thinking",
        "content_block_delta 0 thinking_delta",
        "content_block_delta 0 signature_delta",
        "content_block_stop 0",
        "content_block_start 1 text",
        "content_block_delta 1 text_delta",
        "content_block_stop 1",
        "content_block_start 2 tool_use",
        "content_block_delta 2 input_json_delta",
        "content_block_stop 2",
        "content_block_start 3 tool_use",
        "content_block_delta 3 input_json_delta",
        "content_block_stop 3",
        "message_delta",
        "message_stop",
    ]
    message = accumulate(events)
    assert message.stop_reason == "tool_use"
    thinking, said, weather, time = message.content
    assert thinking.type == "thinking"
    assert thinking.thinking == "so far"
    assert thinking.signature
    assert said.type == "text"
    assert said.text == "\nlook:"
    assert weather.type == "tool_use"
    assert (weather.id, weather.name, weather.input) == ("toolu_call_a", "weather", {"city": "Graz"})
    assert time.type == "tool_use"
    assert time.id.startswith("toolu_")
    assert time.input == {}


def test_thinking_that_is_not_shown() -> None:
    events = stream(whole(thought("so "), thought("far"), text("yes")), hides_thinking=True)
    assert shapes(events)[2:6] == [
        "content_block_start 0 thinking",
        "content_block_delta 0 signature_delta",
        "content_block_stop 0",
        "content_block_start 1 text",
    ]
    thinking = accumulate(events).content[0]
    assert thinking.type == "thinking"
    assert thinking.thinking == ""
    assert reasoning_of(thinking.signature, MAX_RESTORED_BYTES) == "so far"


@pytest.mark.parametrize("hides_thinking", [False, True])
def test_white_space_alone_makes_no_block(hides_thinking: bool) -> None:
    events = stream(
        whole(thought("\n\n"), text("\n\n"), call(0, "{}", identifier="a", name="n"), text("\n")),
        hides_thinking=hides_thinking,
    )
    assert [block.type for block in accumulate(events).content] == ["tool_use"]


@pytest.mark.parametrize("pieces", [[], ["\n"], [" ", "\n"]])
def test_an_answer_of_nothing_has_no_block(pieces: list[str]) -> None:
    assert accumulate(stream(whole(*map(text, pieces)))).content == []
    end = finished(FinishReason.LENGTH, content="".join(pieces))
    assert message_json("msg_1", "claude-x", end, USAGE, hides_thinking=False)["content"] == []


def test_text_behind_a_call_has_a_block_of_its_own() -> None:
    pieces: list[AnswerEvent] = [
        text("look"),
        call(0, "{}", identifier="a", name="n"),
        text("\nmore"),
        call(1, "{}", identifier="b", name="n"),
    ]
    streamed = accumulate(stream(whole(*pieces, reason=FinishReason.TOOL_CALLS)))
    calls = (FinishedToolCall("a", "n", "{}", 4), FinishedToolCall("b", "n", "{}", 9))
    end = finished(FinishReason.TOOL_CALLS, content="look\nmore", calls=calls)
    plain = Message.model_validate(message_json("msg_1", "claude-x", end, USAGE, hides_thinking=False))
    assert [block.type for block in plain.content] == ["text", "tool_use", "text", "tool_use"]
    assert plain.content == streamed.content


def test_an_answer_cut_off_in_its_thinking_has_no_text() -> None:
    message = accumulate(stream(whole(thought("so"), reason=FinishReason.LENGTH)))
    assert [block.type for block in message.content] == ["thinking"]
    assert message.stop_reason == "max_tokens"


def test_a_call_that_is_cut_off_ends_with_max_tokens() -> None:
    pieces = [call(0, "", identifier="a", name="weather"), call(0, '{"city": "Gra')]
    message = accumulate(stream(whole(*pieces, reason=FinishReason.LENGTH)))
    assert message.stop_reason == "max_tokens"
    assert message.content[0].type == "tool_use"


def test_a_stop_sequence_is_named() -> None:
    message = accumulate(stream(whole(text("a"), reason=FinishReason.STOP_TEXT, stop="END")))
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")


def test_every_character_arrives() -> None:
    odd = 'quote " back \\ line \n return \r null \0 \u2028 \u2029 \x85 ü 🤔 data: event:'
    message = accumulate(stream(whole(text("a"), text(odd))))
    assert message.content[0].to_dict()["text"] == "a" + odd


def test_nothing_is_written_for_what_a_client_cannot_use() -> None:
    message = MessageStream("msg_1", "req_1", "m", hides_thinking=True)
    message.first(1)
    assert message.feed(Progress(1, 2)) == b""
    message.feed(thought("a"))
    assert message.feed(thought("b")) == b""


def test_ping_is_an_event_of_the_original() -> None:
    assert parse(PING) == [{"type": "ping"}]


def test_an_error_is_an_event() -> None:
    error = ApiError(ErrorKind.UNAVAILABLE, "engine_failed", "there is no engine")
    (event,) = parse(MessageStream("msg_1", "req_1", "m", hides_thinking=False).fail(error))
    assert event == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "there is no engine"},
        "request_id": "req_1",
    }


@pytest.mark.parametrize("hides_thinking", [False, True])
@pytest.mark.parametrize("reason", list(FinishReason))
def test_a_message_that_is_not_streamed_is_the_same(reason: FinishReason, hides_thinking: bool) -> None:
    pieces: list[AnswerEvent] = [
        thought("so far"),
        text("look"),
        call(0, '{"city":"Graz"}', identifier="a", name="weather"),
        call(1, "", identifier="b", name="time"),
    ]
    streamed = accumulate(stream(whole(*pieces, reason=reason, stop="x"), hides_thinking=hides_thinking))
    calls = (FinishedToolCall("a", "weather", '{"city":"Graz"}'), FinishedToolCall("b", "time", ""))
    end = finished(reason, content="look", reasoning="so far", calls=calls, stop="x")
    plain = Message.model_validate(message_json("msg_1", "claude-x", end, USAGE, hides_thinking=hides_thinking))
    assert plain.model_dump() == {**streamed.model_dump(), "usage": plain.usage.model_dump()}
    assert plain.usage.input_tokens == streamed.usage.input_tokens == 40


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ('{"a": "cut of', {"a": "cut of"}),
        ('{"a": [1, 2', {"a": [1, 2]}),
        ("[1]", {"arguments": [1]}),
        ("null", {}),
        ("no json", {"arguments": "no json"}),
        ('{"a": 1e999, "b": [-Infinity, NaN]}', {"a": "1e999", "b": ["-Infinity", "NaN"]}),
        ('{"a": "\\ud83d"}', {"a": "\ufffd"}),
        ('{"a": 100000000000000000000}', {"a": 10**20}),
        ('{"a": ' + "[" * 5000 + "]" * 5000 + "}", {"arguments": '{"a": ' + "[" * 5000 + "]" * 5000 + "}"}),
        ('{"a": 1} and more', {"a": 1}),
    ],
)
def test_a_calls_input_is_an_object_in_any_case(arguments: str, expected: dict[str, Any]) -> None:
    end = finished(FinishReason.LENGTH, calls=(FinishedToolCall("a", "n", arguments),))
    message = message_json("msg_1", "m", end, USAGE, hides_thinking=False)
    assert [block["input"] for block in message["content"]] == [expected]
    json.dumps(message, allow_nan=False)
