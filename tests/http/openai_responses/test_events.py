"""Events of the Responses API: their order, their numbers, and that the SDK's own types take each. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from luce.supervisor.http.answering.answer_events import (
    AnswerEvent,
    AnswerFinished,
    ChoiceFinished,
    ContentPiece,
    FinishReason,
    Logprob,
    Progress,
    ReasoningPiece,
    TokenLogprob,
    ToolCallPiece,
    Usage,
)
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.openai_responses.events import ResponseForm, ResponseWriter
from luce.supervisor.http.openai_responses.items import messages_of, unpack_reasoning
from luce.supervisor.http.openai_responses.output import custom_input
from luce.supervisor.http.openai_responses.tools import OfferedTool, Tools

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ECHOED = {"model": "gpt-x", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
TOOLS = Tools(
    (),
    {
        "run": OfferedTool("run"),
        "agents__wait": OfferedTool("wait", "agents"),
        "apply_patch": OfferedTool("apply_patch", is_custom=True),
    },
)
OPENING = ["response.created", "response.in_progress"]
MESSAGE_OPENS = ["response.output_item.added", "response.content_part.added"]
MESSAGE_ENDS = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]


def usage(**values: Any) -> Usage:
    counts: dict[str, Any] = {
        "n_prompt": 10, "n_cached": 6, "cache_tier": "resident", "cache_miss": "differs_at:6", "n_generated": 4,
        "n_reasoning": 1, "queue_s": 0.0, "prefill_s": 0.5, "decode_s": 0.25, "n_resumes": 0,
    }  # fmt: skip
    return Usage(**(counts | values))


def ended(reason: FinishReason = FinishReason.STOP) -> list[AnswerEvent]:
    finished = ChoiceFinished(
        choice=0, reason=reason, stop_text=None, content="", reasoning="", tool_calls=(), logprobs=()
    )
    return [finished, AnswerFinished(usage())]


def parse(stream: bytes) -> list[dict[str, Any]]:
    """Each event, checked: its name is its type, its number the next, and the SDK takes it."""
    events = []
    for number, block in enumerate(stream.decode("ascii").removesuffix("\n\n").split("\n\n")):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        EVENTS.validate_python(event)
        events.append(event)
    return events


def write(events: Sequence[AnswerEvent], **form: Any) -> tuple[list[dict[str, Any]], ResponseWriter]:
    writer = ResponseWriter(ResponseForm(ECHOED, TOOLS, **form))
    stream = writer.first() + b"".join(map(writer.feed, events))
    return parse(stream), writer


def types(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def test_a_text() -> None:
    events, writer = write(
        [Progress(3, 9), ContentPiece(0, "Hel"), ContentPiece(0, ""), ContentPiece(0, "lo"), *ended()]
    )
    deltas = ["response.output_text.delta"] * 2
    assert types(events) == [*OPENING, *MESSAGE_OPENS, *deltas, *MESSAGE_ENDS, "response.completed"]
    response = Response.model_validate(events[-1]["response"], strict=True)
    assert response.output_text == events[-4]["text"] == "Hello"
    assert (response.status, response.error, response.incomplete_details) == ("completed", None, None)
    assert json.loads(writer.final) == events[-1]["response"]
    assert {event["response"]["id"] for event in events if "response" in event} == {response.id}
    item = {event["item_id"] for event in events if "item_id" in event} | {events[2]["item"]["id"]}
    assert item == {response.output[0].id}
    assert events[2]["item"]["content"] == []


def test_usage_says_what_the_cache_did() -> None:
    events, _ = write(ended())
    told = events[-1]["response"]["usage"]
    assert (told["input_tokens"], told["output_tokens"], told["total_tokens"]) == (10, 4, 14)
    assert told["input_tokens_details"] == {"cached_tokens": 6, "cache_write_tokens": 4}
    assert told["output_tokens_details"] == {"reasoning_tokens": 1}
    assert told["luce"]["cache_miss"] == "differs_at:6"
    assert events[-1]["timings"]["prompt_per_second"] == 8.0


def test_a_turn_with_everything() -> None:
    pieces: list[AnswerEvent] = [
        ReasoningPiece(0, "hm"),
        ContentPiece(0, "well"),
        ToolCallPiece(0, 0, "call_1", "run", ""),
        ToolCallPiece(0, 0, "", "", '{"a"'),
        ToolCallPiece(0, 0, "", "", ":1}"),
        ToolCallPiece(0, 1, "call_2", "agents__wait", "{}"),
    ]
    events, _ = write([*pieces, *ended(FinishReason.TOOL_CALLS)])
    arguments = "response.function_call_arguments"
    assert types(events) == [
        *OPENING,
        *MESSAGE_OPENS, "response.reasoning_text.delta", "response.reasoning_text.done", *MESSAGE_ENDS[1:],
        *MESSAGE_OPENS, "response.output_text.delta", *MESSAGE_ENDS,
        "response.output_item.added", f"{arguments}.delta", f"{arguments}.delta", f"{arguments}.done", MESSAGE_ENDS[2],
        "response.output_item.added", f"{arguments}.delta", f"{arguments}.done", MESSAGE_ENDS[2],
        "response.completed",
    ]  # fmt: skip
    output = events[-1]["response"]["output"]
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == output
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert {item["status"] for item in output} == {"completed"}
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert output[0]["encrypted_content"] is None
    assert (output[2]["call_id"], output[2]["name"], output[2]["arguments"]) == ("call_1", "run", '{"a":1}')
    assert (output[3]["name"], output[3]["namespace"]) == ("wait", "agents")
    assert "namespace" not in output[2]
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [item.get("arguments") for item in added] == [None, None, "", ""]
    assert [event["output_index"] for event in events if event["type"] == "response.output_item.done"] == [0, 1, 2, 3]


def test_the_output_sent_back_is_the_turn_that_was_generated() -> None:
    pieces: list[AnswerEvent] = [
        ReasoningPiece(0, "hm"),
        ContentPiece(0, "well"),
        ToolCallPiece(0, 0, "call_1", "agents__wait", '{"a": 1}'),
        ToolCallPiece(0, 1, "call_2", "apply_patch", '{"input": "+x"}'),
    ]
    events, _ = write([*pieces, *ended(FinishReason.TOOL_CALLS)])
    (message,) = messages_of(events[-1]["response"]["output"])
    assert (message["reasoning_content"], message["content"]) == ("hm", "well")
    functions = [call["function"] for call in message["tool_calls"]]
    assert functions == [
        {"name": "agents__wait", "arguments": '{"a": 1}'},
        {"name": "apply_patch", "arguments": '{"input": "+x"}'},
    ]


def test_a_custom_tools_call_is_its_text() -> None:
    pieces: list[AnswerEvent] = [
        ToolCallPiece(0, 0, "call_1", "apply_patch", '{"inp'),
        ToolCallPiece(0, 0, "", "", 'ut": "a\\n\\u00e9"}'),
    ]
    events, _ = write([*pieces, *ended(FinishReason.TOOL_CALLS)])
    assert types(events)[2:-1] == [
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
    ]
    assert (events[2]["item"]["input"], events[3]["delta"], events[4]["input"]) == ("", "a\né", "a\né")
    (item,) = events[-1]["response"]["output"]
    assert (item["type"], item["name"], item["call_id"], item["input"]) == (
        "custom_tool_call", "apply_patch", "call_1", "a\né",
    )  # fmt: skip


@given(st.text(), st.data())
def test_a_custom_input_that_is_cut_off_keeps_its_beginning(text: str, data: st.DataObject) -> None:
    arguments = json.dumps({"input": text})
    assert custom_input(arguments) == text
    n_kept = data.draw(st.integers(0, len(text)))
    whole = json.dumps(text[:n_kept])[:-1]  # without the closing quote
    assert custom_input(f'{{"input": {whole}') == text[:n_kept]
    n_cut = data.draw(st.integers(1, 11))
    if len(whole) > n_cut:
        assert text.startswith(custom_input(f'{{"input": {whole[:-n_cut]}'))


def test_half_of_a_surrogate_pair_is_left_out() -> None:
    assert custom_input('{"input": "a\\ud83d\\ude') == "a"
    assert custom_input('{"input": "a\\ud83d"}') == "a"


@pytest.mark.parametrize("arguments", ["", "nothing", "[1]", '{"other": "x"}', '{"input": 5}', '"text"'])
def test_what_is_no_custom_input_stays_as_it_is(arguments: str) -> None:
    assert custom_input(arguments) == arguments


def test_an_answer_that_is_cut_off_is_incomplete() -> None:
    pieces: list[AnswerEvent] = [ContentPiece(0, "so"), ToolCallPiece(0, 0, "call_1", "run", '{"a')]
    events, _ = write([*pieces, *ended(FinishReason.LENGTH)])
    assert events[-1]["type"] == "response.incomplete"
    response = events[-1]["response"]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["completed_at"] is None
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.STOP])
def test_a_call_that_breaks_off_is_incomplete_whatever_follows(reason: FinishReason) -> None:
    pieces: list[AnswerEvent] = [ToolCallPiece(0, 0, "call_1", "run", '{"a'), ContentPiece(0, "so")]
    events, _ = write([*pieces, *ended(reason)])
    whole = "incomplete" if reason is FinishReason.LENGTH else "completed"
    assert [item["status"] for item in events[-1]["response"]["output"]] == ["incomplete", whole]
    assert (
        next(event["item"]["status"] for event in events if event["type"] == "response.output_item.done")
        == "incomplete"
    )


def test_an_empty_answer_is_an_empty_message() -> None:
    events, _ = write(ended())
    assert types(events) == [*OPENING, *MESSAGE_OPENS, *MESSAGE_ENDS, "response.completed"]
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == ""


def test_reasoning_alone_stays_alone() -> None:
    events, _ = write([ReasoningPiece(0, "hm"), *ended(FinishReason.LENGTH)])
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning"]


def test_a_failure_is_never_a_completion() -> None:
    writer = ResponseWriter(ResponseForm(ECHOED))
    stream = writer.first() + writer.feed(ContentPiece(0, "Hel"))
    stream += writer.fail(ApiError(ErrorKind.UNAVAILABLE, "engine_failed", "the engine is gone"))
    events = parse(stream)
    assert types(events) == [*OPENING, *MESSAGE_OPENS, "response.output_text.delta", "response.failed"]
    response = events[-1]["response"]
    assert (response["status"], response["error"]) == (
        "failed", {"code": "server_error", "message": "the engine is gone"},
    )  # fmt: skip
    assert response["output"][0]["status"] == "incomplete"
    assert writer.final == b""


def test_signs_of_life_are_typed_events_with_numbers_of_their_own() -> None:
    writer = ResponseWriter(ResponseForm(ECHOED))
    stream = writer.first() + writer.keep_alive() + writer.keep_alive() + b"".join(map(writer.feed, ended()))
    events = parse(stream)
    assert types(events)[:4] == ["response.created", *["response.in_progress"] * 3]
    assert writer.keep_alive() == b""


def test_reasoning_is_packed_if_asked_for() -> None:
    events, _ = write([ReasoningPiece(0, "hm"), *ended()], packs_reasoning=True)
    assert unpack_reasoning(events[-1]["response"]["output"][0]["encrypted_content"]) == "hm"


def test_logprobs() -> None:
    def token(text: str, logprob: float) -> Logprob:
        return Logprob(1, text.encode(), logprob)

    pieces: list[AnswerEvent] = [
        ReasoningPiece(0, "hm"),
        ContentPiece(0, "a", [TokenLogprob(token("a", -0.5), [token("a", -0.5), token("b", -math.inf)])]),
        ContentPiece(0, "", [TokenLogprob(Logprob(1, b"\xc3", -2.0))]),
    ]
    events, _ = write([*pieces, *ended()], with_logprobs=True)
    deltas = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
    first = {"token": "a", "bytes": [97], "logprob": -0.5}
    other = {"token": "b", "bytes": [98], "logprob": -9999.0}
    broken = {"token": "\ufffd", "bytes": [195], "logprob": -2.0, "top_logprobs": []}
    assert deltas == [[{**first, "top_logprobs": [first, other]}], [broken]]
    assert events[-1]["response"]["output"][1]["content"][0]["logprobs"] == [*deltas[0], *deltas[1]]
    plain, _ = write([*pieces, *ended()])
    assert [event["logprobs"] for event in plain if event["type"] == "response.output_text.delta"] == [[]]


def test_llama_servers_telemetry() -> None:
    pieces: list[AnswerEvent] = [Progress(4, 10), Progress(8, 10), ContentPiece(0, "a")]
    events, _ = write([*pieces, *ended()], with_progress=True, with_timings=True)
    told = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert [(one["total"], one["cache"], one["processed"]) for one in told] == [(10, 4, 4), (10, 4, 8)]
    (delta,) = [event for event in events if event["type"] == "response.output_text.delta"]
    assert {"prompt_per_second", "predicted_per_second"} <= delta["timings"].keys()


def test_nothing_in_a_text_breaks_an_event() -> None:
    text = 'a\n\ndata: x\r\u2028\u2029\x85"\\\x00\U0001f600'
    events, _ = write([ContentPiece(0, text), *ended()])
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == text


_PIECES = st.one_of(
    st.builds(ContentPiece, st.just(0), st.text(max_size=4)),
    st.builds(ReasoningPiece, st.just(0), st.text(max_size=4)),
    st.builds(
        ToolCallPiece, st.just(0), st.integers(0, 2), st.just("call"), st.sampled_from(["run", "apply_patch"]),
        st.text(max_size=4),
    ),
)  # fmt: skip


@given(st.lists(_PIECES, max_size=12), st.sampled_from(FinishReason))
def test_deltas_are_what_the_items_say(pieces: list[AnswerEvent], reason: FinishReason) -> None:
    """Whatever comes in whatever order: opened once, ended once, in order, and the parts are the whole."""
    events, _ = write([*pieces, *ended(reason)])
    output = events[-1]["response"]["output"]
    added = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert added == list(range(len(output)))
    assert done == output
    for index, item in enumerate(output):
        own = [event for event in events if event.get("output_index") == index and "delta" in event]
        whole = item.get("arguments", item.get("input"))
        assert "".join(event["delta"] for event in own) == (item["content"][0]["text"] if whole is None else whole)
