"""The chunks of a chat completion, byte for byte where order matters, and as the SDK's own types."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from luce.supervisor.http.answering.answer_events import (
    AnswerEvent,
    AnswerFinished,
    ChoiceFinished,
    ContentPiece,
    FinishedToolCall,
    FinishReason,
    Logprob,
    Progress,
    ReasoningPiece,
    TokenLogprob,
    ToolCallPiece,
)
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.openai_chat.emit import ChatStream, whole_chat
from luce.supervisor.http.openai_chat.parse import ParsedRequest
from luce.supervisor.http.openai_shared.shapes import SYSTEM_FINGERPRINT, chat_logprobs
from luce.supervisor.http.prompts.answer_request import AnswerRequest, ChatPrompt
from tests.http.usages import usage

ROOT = Path(__file__).resolve().parents[3]
_TIMES = {"queue_s": 0.001, "prefill_s": 0.01, "decode_s": 0.02}
USAGE = usage(n_prompt=10, n_cached=4, cache_miss="differs_at:4", n_generated=3, n_reasoning=1, **_TIMES)


def parsed(*, n: int = 1, n_logprobs: int | None = None, usage: bool = False, legacy: bool = False) -> ParsedRequest:
    return ParsedRequest(
        answer_request=AnswerRequest(prompt=ChatPrompt(messages=[]), n=n, n_logprobs=n_logprobs),
        streams=True,
        includes_usage=usage,
        is_legacy=legacy,
        shows_progress=False,
    )


def finished(choice: int = 0, reason: FinishReason = FinishReason.STOP, **fields: Any) -> ChoiceFinished:
    values = {"stop_text": None, "content": "", "reasoning": "", "tool_calls": (), "logprobs": ()} | fields
    return ChoiceFinished(choice=choice, reason=reason, **values)


def payloads(data: bytes) -> list[str]:
    """What the `data:` lines hold. Every event is such a line and a blank one, and nothing else."""
    events = data.split(b"\n\n")
    assert events.pop() == b""
    assert all(event.startswith(b"data: ") and b"\n" not in event for event in events)
    return [event.removeprefix(b"data: ").decode("ascii") for event in events]


def streamed(asked: ParsedRequest, events: Sequence[AnswerEvent]) -> list[Any]:
    """The chunks, each valid for the SDK, and "[DONE]"."""
    stream = ChatStream(asked, "m")
    data = stream.first(1) + b"".join(map(stream.feed, events))
    chunks = [text if text == "[DONE]" else json.loads(text) for text in payloads(data)]
    for chunk in chunks:
        if chunk != "[DONE]":
            ChatCompletionChunk.model_validate(chunk, strict=True)
    return chunks


def deltas(chunks: Sequence[Any]) -> list[Any]:
    return [chunk["choices"][0]["delta"] for chunk in chunks if chunk != "[DONE]" and chunk["choices"]]


def test_order() -> None:
    events: list[AnswerEvent] = [
        ReasoningPiece(0, "hm"),
        ContentPiece(0, "Hi"),
        ContentPiece(0, ""),
        finished(),
        AnswerFinished(USAGE),
    ]
    chunks = streamed(parsed(usage=True), events)
    assert deltas(chunks) == [
        {"role": "assistant", "content": None},
        {"reasoning_content": "hm"},
        {"content": "Hi"},
        {},
    ]
    *parts, usage, done = chunks
    assert done == "[DONE]"
    assert [part["choices"][0]["finish_reason"] for part in parts] == [None, None, None, "stop"]
    assert all(part["usage"] is None for part in parts)
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] == 4
    assert usage["usage"]["completion_tokens_details"]["reasoning_tokens"] == 1
    assert usage["usage"]["luce"]["cache_miss"] == "differs_at:4"
    assert usage["timings"]["prompt_n"] == 6
    assert len({(part["id"], part["created"], part["model"]) for part in (*parts, usage)}) == 1
    assert usage["id"].startswith("chatcmpl-")


def test_bytes_of_a_chunk() -> None:
    """Field by field as OpenAI writes them."""
    (text,) = payloads(ChatStream(parsed(), 'a "model"').feed(ContentPiece(0, 'é"\n\u2028\x85')))
    assert list(json.loads(text)) == ["id", "object", "created", "model", "system_fingerprint", "choices"]
    assert text.endswith(
        '"choices":[{"index":0,"delta":{"content":"\\u00e9\\"\\n\\u2028\\u0085"},"logprobs":null,"finish_reason":null}]}'
    )


def test_no_usage_unless_asked_for() -> None:
    chunks = streamed(parsed(), [ContentPiece(0, "x"), finished(), AnswerFinished(USAGE)])
    assert not any("usage" in chunk for chunk in chunks[:-1])
    assert "timings" not in chunks[0]
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-2]["timings"]["predicted_n"] == 3


def test_tool_calls() -> None:
    events: list[AnswerEvent] = [
        ToolCallPiece(0, 0, "call_a", "read", ""),
        ToolCallPiece(0, 0, "", "", '{"path": '),
        ToolCallPiece(0, 0, "", "", '"x"}'),
        ToolCallPiece(0, 1, "call_b", "write", "{}"),
        finished(reason=FinishReason.TOOL_CALLS),
        AnswerFinished(USAGE),
    ]
    chunks = streamed(parsed(), events)
    assert deltas(chunks)[1:-1] == [
        {
            "tool_calls": [
                {"index": 0, "id": "call_a", "type": "function", "function": {"name": "read", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"path": '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"x"}'}}]},
        {
            "tool_calls": [
                {"index": 1, "id": "call_b", "type": "function", "function": {"name": "write", "arguments": "{}"}}
            ]
        },
    ]
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"


def test_legacy_calls() -> None:
    events: list[AnswerEvent] = [
        ToolCallPiece(0, 0, "call_a", "read", ""),
        ToolCallPiece(0, 0, "", "", "{}"),
        finished(reason=FinishReason.TOOL_CALLS),
        AnswerFinished(USAGE),
    ]
    chunks = streamed(parsed(legacy=True), events)
    assert deltas(chunks)[1:-1] == [
        {"function_call": {"name": "read", "arguments": ""}},
        {"function_call": {"arguments": "{}"}},
    ]
    assert chunks[-2]["choices"][0]["finish_reason"] == "function_call"


def test_logprobs() -> None:
    told = TokenLogprob(Logprob(7, b"Hi", -0.5), (Logprob(7, b"Hi", -0.5), Logprob(8, b"\xc3", float("-inf"))))
    events: list[AnswerEvent] = [
        ReasoningPiece(0, "hm"),
        ContentPiece(0, "Hi", (told,)),
        ContentPiece(0, "!"),
        finished(),
        AnswerFinished(USAGE),
    ]
    _, reasoning, content, bare, _, _ = streamed(parsed(n_logprobs=2), events)
    assert reasoning["choices"][0]["logprobs"] is None
    assert content["choices"][0]["logprobs"] == {
        "content": [
            {
                "id": 7,
                "token": "Hi",
                "logprob": -0.5,
                "bytes": [72, 105],
                "top_logprobs": [
                    {"id": 7, "token": "Hi", "logprob": -0.5, "bytes": [72, 105]},
                    {"id": 8, "token": "\ufffd", "logprob": -9999.0, "bytes": [0xC3]},
                ],
            }
        ],
        "refusal": None,
    }
    assert bare["choices"][0]["logprobs"] == {"content": [], "refusal": None}


def test_the_sampled_token_is_among_the_best_that_were_asked_for() -> None:
    best, sampled = Logprob(8, b"Ho", -0.5), Logprob(7, b"Hi", -4.0)
    for likeliest, expected in (((best,), [8, 7]), ((), [])):
        told = chat_logprobs([TokenLogprob(sampled, likeliest)])["content"][0]["top_logprobs"]
        assert [entry["id"] for entry in told] == expected


def test_several_choices() -> None:
    events: list[AnswerEvent] = [
        ContentPiece(1, "b"),
        ContentPiece(0, "a"),
        finished(1, FinishReason.LENGTH),
        finished(0),
        AnswerFinished(USAGE),
    ]
    chunks = streamed(parsed(n=2), events)
    told = [(chunk["choices"][0]["index"], chunk["choices"][0]["finish_reason"]) for chunk in chunks[:-1]]
    assert told == [(0, None), (1, None), (1, None), (0, None), (1, "length"), (0, "stop")]
    assert deltas(chunks)[:2] == [{"role": "assistant", "content": None}] * 2


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (FinishReason.STOP, "stop"),
        (FinishReason.STOP_TEXT, "stop"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.TOOL_CALLS, "tool_calls"),
    ],
)
def test_finish_reasons(reason: FinishReason, word: str) -> None:
    assert (
        streamed(parsed(), [finished(reason=reason), AnswerFinished(USAGE)])[-2]["choices"][0]["finish_reason"] == word
    )


def test_a_failed_answer_has_no_finish() -> None:
    """The finish of the last choice waits for the counts: a failure between the two leaves none."""
    stream = ChatStream(parsed(usage=True), "m")
    data = stream.first(1) + stream.feed(ContentPiece(0, "x")) + stream.feed(finished())
    data += stream.fail(ApiError(ErrorKind.UNAVAILABLE, "engine_failed", "the engine is gone"))
    *parts, error = [json.loads(text) for text in payloads(data)]
    assert all(part["choices"][0]["finish_reason"] is None for part in parts)
    assert error["error"]["code"] == "engine_failed"
    assert error["error"]["type"] == "server_error"


def test_keep_alive_is_an_empty_delta() -> None:
    stream = ChatStream(parsed(n=2, usage=True), "m")
    (text,) = payloads(stream.keep_alive())
    chunk = json.loads(text)
    ChatCompletionChunk.model_validate(chunk, strict=True)
    assert chunk["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}]
    stream.feed(finished(0))
    (text,) = payloads(stream.keep_alive())
    assert json.loads(text)["choices"][0]["index"] == 1


def test_progress_only_if_asked_for() -> None:
    assert ChatStream(parsed(), "m").feed(Progress(64, 128)) == b""
    asked = ParsedRequest(
        answer_request=AnswerRequest(prompt=ChatPrompt(messages=[])),
        streams=True,
        includes_usage=True,
        is_legacy=False,
        shows_progress=True,
    )
    stream = ChatStream(asked, "m")
    chunks = [json.loads(text) for text in payloads(stream.feed(Progress(64, 128)) + stream.feed(Progress(128, 128)))]
    assert [chunk["prompt_progress"] for chunk in chunks] == [
        {"total": 128, "cache": 64, "processed": 64},
        {"total": 128, "cache": 64, "processed": 128},
    ]


def test_whole_answers() -> None:
    choices = [
        finished(0, content="Hi", reasoning="hm"),
        finished(1, FinishReason.TOOL_CALLS, tool_calls=(FinishedToolCall("call_a", "read", "{}"),)),
    ]
    answer = whole_chat(choices, USAGE, parsed(n=2), "m")
    ChatCompletion.model_validate(answer, strict=True)
    first, second = answer["choices"]
    assert first["message"] == {"role": "assistant", "content": "Hi", "refusal": None, "reasoning_content": "hm"}
    assert second["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [{"id": "call_a", "type": "function", "function": {"name": "read", "arguments": "{}"}}],
    }
    assert [choice["finish_reason"] for choice in (first, second)] == ["stop", "tool_calls"]
    legacy = whole_chat(choices[1:], USAGE, parsed(legacy=True), "m")["choices"][0]
    assert legacy["message"]["function_call"] == {"name": "read", "arguments": "{}"}
    assert legacy["finish_reason"] == "function_call"


def test_fingerprint_names_the_pinned_build() -> None:
    pinned = (ROOT / "cmake" / "FetchLlama.cmake").read_text()
    assert f'"{SYSTEM_FINGERPRINT.split("-")[0]}"' in pinned
