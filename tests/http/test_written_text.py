"""What a model writes beside its format is in some field of the answer, in each API, streamed and not. The texts are
forced by grammars."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import pytest

from scripts.clients.streamed_answer import answer_of
from tests.http.asking import MESSAGES, answered, in_each_talking_api, question, tools
from tests.http.serving import Server
from tests.http.test_grammar_beside_tools import BODIES, CALL, events_of, said

MARK = "Use <tool_call> to call. Then more."
UNKNOWN = '<tool_call>\n{"name": "no_tool", "arguments": {"path": "a"}}\n</tool_call>'
BROKEN = "<tool_call>\n<function=read_file>\nsorry, I stop."
WRITTEN = "<tool_call>\n<function=read_file>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>"
LINES = "\n\n"


def answer(server: Server, path: str, text: str, *, streams: bool, **options: Any) -> list[dict[str, Any]]:
    body = {**BODIES[path], "grammar": f"root ::= {json.dumps(text)}", "stream": streams, **options}
    return events_of(server, path, body)


def reason_of(events: list[dict[str, Any]]) -> str:
    for event in reversed(events):
        for found in (event, event.get("delta"), *event.get("choices", ())):
            if isinstance(found, dict) and (reason := found.get("finish_reason") or found.get("stop_reason")):
                return str(reason)
    return ""


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize("text", [MARK, UNKNOWN, BROKEN])
def test_what_is_no_call_is_text(tagged: Server, path: str, text: str, streams: bool) -> None:
    events = answer(tagged, path, "so</think>\n\n" + text, streams=streams)
    texts, calls = said([message for message in answer_of(events) if message.get("type") != "reasoning"])
    assert (texts, calls) == (text, [])
    assert reason_of(events) in {"stop", "end_turn", ""}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("path", list(BODIES))
def test_text_behind_a_call(server: Server, path: str, streams: bool) -> None:
    events = answer(server, path, CALL + "\nAfter text", streams=streams)
    texts, calls = said(answer_of(events))
    assert texts.startswith("I look.")
    assert texts.endswith("After text")
    assert [name for name, _ in calls] == ["read_file"]
    assert reason_of(events) in {"tool_calls", "tool_use", ""}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("path", list(BODIES))
def test_text_behind_a_call_of_tags(tagged: Server, path: str, streams: bool) -> None:
    events = answer(tagged, path, f"so</think>\n\n{WRITTEN}\nAfter text", streams=streams)
    texts, calls = said([message for message in answer_of(events) if message.get("type") != "reasoning"])
    assert (texts, calls) == ("After text", [("read_file", {"path": "a"})])


def test_blocks_are_in_the_order_of_the_text(server: Server) -> None:
    events = answer(server, "/v1/messages", CALL + "\nAfter text", streams=False)
    streamed = answer(server, "/v1/messages", CALL + "\nAfter text", streams=True)
    kinds = [block["type"] for block in events[0]["content"]]
    assert kinds == ["text", "tool_use", "text"]
    started = [event["content_block"]["type"] for event in streamed if event["type"] == "content_block_start"]
    assert started == kinds


@pytest.mark.parametrize("streams", [False, True])
def test_held_text_comes_before_the_call(server: Server, streams: bool) -> None:
    """What may begin a stop string waits; the call that follows it does not overtake it."""
    text = CALL.replace("I look.", "I look now")
    events = answer(server, "/v1/messages", text, streams=streams, stop_sequences=["now\n<tool"])
    if streams:
        kinds = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    else:
        kinds = [block["type"] for block in events[0]["content"]]
    assert kinds == ["text", "tool_use"]
    assert said(answer_of(events))[0] == "I look now"


@pytest.mark.parametrize("streams", [False, True])
def test_an_empty_thought_alone_has_no_block(tagged: Server, streams: bool) -> None:
    events = answer(tagged, "/v1/messages", "\n</think>\n", streams=streams)
    if streams:
        assert "content_block_start" not in [event["type"] for event in events]
    else:
        assert events[0]["content"] == []


@in_each_talking_api
def test_stop_strings_act_in_the_content_alone(tagged: Server, path: str, streams: bool) -> None:
    written = {"grammar": f"root ::= {json.dumps('so</think>' + LINES + 'I look.' + LINES + WRITTEN)}"}
    body = question(path, **tools(path, {"read_file": {"type": "object", "properties": {"path": {}}}}), **written)
    field = "stop_sequences" if path == MESSAGES else "stop"
    for word in ("so", "path"):
        told = answered(tagged.url, path, {**body, field: [word]}, streams=streams)
        assert (told.reasoning.strip(), told.content.strip()) == ("so", "I look.")
        assert (told.calls, told.finish) == ([("read_file", {"path": "a"})], "tool_calls")
    told = answered(tagged.url, path, {**body, field: ["look"]}, streams=streams)
    assert (told.content.strip(), told.calls, told.finish) == ("I", [], "stop")


def test_mended_answers_are_counted(tagged: Server) -> None:
    def counted(name: str) -> float:
        lines = httpx.get(tagged.url + "/metrics").text.splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith(name + " "))

    before = counted("luce_http_mended_answers_total")
    answer(tagged, "/v1/chat/completions", "so</think>\n\n" + MARK, streams=False)
    assert counted("luce_http_mended_answers_total") == before + 1
    assert counted("luce_http_unaccounted_text_bytes_total") == 0
