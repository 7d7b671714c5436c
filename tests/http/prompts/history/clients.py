"""Clients of the four APIs, as their programs keep a conversation: what they send, and how they append what they got.

Over the dialects' readers and writers, without a server: texts go through JSON both ways. Knows no test.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from luce.supervisor.http.answering.answer_events import (
    AnswerEvent,
    AnswerFinished,
    ChoiceFinished,
    ContentPiece,
    FinishedToolCall,
    FinishReason,
    ReasoningPiece,
    ToolCallPiece,
)
from luce.supervisor.http.anthropic.conversion import request_of_messages
from luce.supervisor.http.anthropic.events import MessageStream, message_json
from luce.supervisor.http.anthropic.shapes import MessagesRequest
from luce.supervisor.http.openai_chat.body import ChatBody
from luce.supervisor.http.openai_chat.emit import ChatStream, whole_chat
from luce.supervisor.http.openai_chat.parse import ParsedRequest, read_chat
from luce.supervisor.http.openai_completions.parse import CompletionBody, read_completion
from luce.supervisor.http.openai_responses.events import ResponseForm, ResponseWriter
from luce.supervisor.http.openai_responses.request import Caller, ResponsesBody, read_request
from luce.supervisor.http.prompts.answer_request import AnswerRequest, ChatPrompt
from luce.supervisor.http.prompts.history.characters import whole_characters
from luce.supervisor.http.transport.body import check
from luce.supervisor.text import TextModel
from tests.http.usages import usage

USAGE = usage(n_prompt=10, n_cached=4, cache_miss="differs_at:4", n_generated=3, n_reasoning=1)
CALLER = Caller({}, "me")
_TOOL = {"type": "object", "properties": {}}


@dataclass(frozen=True)
class Answer:
    """What a model wrote, as the server reads it."""

    content: str
    reasoning: str
    calls: Sequence[FinishedToolCall]
    is_cut: bool
    """By max_tokens."""

    def events(self, n_split: int) -> list[AnswerEvent]:
        """In pieces of so many characters."""
        events: list[AnswerEvent] = [ReasoningPiece(0, text) for text in _split(self.reasoning, n_split)]
        events += [ContentPiece(0, text) for text in _split(self.content, n_split)]
        for index, call in enumerate(self.calls):
            first, *rest = _split(call.arguments, n_split) or [""]
            events.append(ToolCallPiece(0, index, call.id, call.name, first))
            events += [ToolCallPiece(0, index, "", "", text) for text in rest]
        return [*events, self.finished(), AnswerFinished(USAGE)]

    def finished(self) -> ChoiceFinished:
        reason = FinishReason.TOOL_CALLS if self.calls else FinishReason.STOP
        return ChoiceFinished(
            choice=0,
            reason=FinishReason.LENGTH if self.is_cut else reason,
            stop_text=None,
            content=self.content,
            reasoning=self.reasoning,
            tool_calls=self.calls,
            logprobs=(),
        )


class Client(Protocol):
    """Keeps one conversation."""

    def ask(self, text: str) -> None: ...
    def give_results(self, calls: Sequence[FinishedToolCall], text: str) -> None: ...
    def request(self) -> AnswerRequest:
        """As the server reads what is sent now. Raises ApiError."""

    def take(self, answer: Answer, n_split: int | None) -> None:
        """`n_split`: of a stream's pieces; None: it is not streamed."""


class ChatClient:
    def __init__(self, model: TextModel) -> None:
        self._model = model
        self._messages: list[Any] = []

    def ask(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})

    def give_results(self, calls: Sequence[FinishedToolCall], text: str) -> None:
        self._messages += [{"role": "tool", "tool_call_id": call.id, "content": text} for call in calls]

    def request(self) -> AnswerRequest:
        body = check(sent({"messages": self._messages}), ChatBody)
        return read_chat(body, self._model, max_choices=1, headers={}, client="me").answer_request

    def take(self, answer: Answer, n_split: int | None) -> None:
        parsed = ParsedRequest(
            answer_request=AnswerRequest(prompt=ChatPrompt(messages=[])),
            streams=n_split is not None,
            includes_usage=False,
            is_legacy=False,
            shows_progress=False,
        )
        if n_split is None:
            whole = received(json.dumps(whole_chat([answer.finished()], USAGE, parsed, "m")))
            self._messages.append(whole["choices"][0]["message"])
            return
        stream = ChatStream(parsed, "m")
        message: dict[str, Any] = {"role": "assistant", "content": None}
        for event in answer.events(n_split):
            for chunk in _sse(stream.feed(event)):
                for choice in chunk.get("choices", ()):
                    _add_delta(message, choice["delta"])
        self._messages.append(message)


class ResponsesClient:
    def __init__(self, model: TextModel) -> None:
        self._model = model
        self._items: list[Any] = []

    def ask(self, text: str) -> None:
        self._items.append({"role": "user", "content": text})

    def give_results(self, calls: Sequence[FinishedToolCall], text: str) -> None:
        self._items += [{"type": "function_call_output", "call_id": call.id, "output": text} for call in calls]

    def request(self) -> AnswerRequest:
        body = check(sent({"input": self._items}), ResponsesBody)
        return read_request(body, (), model="m", vocabulary=self._model, caller=CALLER).answer_request

    def take(self, answer: Answer, n_split: int | None) -> None:
        writer = ResponseWriter(ResponseForm({"model": "m"}))
        streamed = [
            event["item"]
            for fed in answer.events(n_split or 1 << 20)
            for event in _sse(writer.feed(fed))
            if event["type"] == "response.output_item.done"
        ]
        self._items += received(writer.final.decode())["output"] if n_split is None else streamed


class MessagesClient:
    def __init__(self, model: TextModel) -> None:
        self._model = model
        self._messages: list[Any] = []

    def ask(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})

    def give_results(self, calls: Sequence[FinishedToolCall], text: str) -> None:
        uses = [block for block in self._messages[-1]["content"] if block["type"] == "tool_use"]
        assert len(uses) == len(calls)
        results = [{"type": "tool_result", "tool_use_id": use["id"], "content": text} for use in uses]
        self._messages.append({"role": "user", "content": results})

    def request(self) -> AnswerRequest:
        body = check(sent({"messages": self._messages, "max_tokens": 9, "tools": None}), MessagesRequest)
        return request_of_messages(body, n_vocab=self._model.n_vocab)

    def take(self, answer: Answer, n_split: int | None) -> None:
        if n_split is None:
            whole = received(json.dumps(message_json("msg_1", "m", answer.finished(), USAGE, hides_thinking=False)))
            self._messages.append({"role": "assistant", "content": whole["content"]})
            return
        stream = MessageStream("msg_1", "req_1", "m", hides_thinking=False)
        blocks: list[dict[str, Any]] = []
        for event in answer.events(n_split):
            for told in _sse(stream.feed(event)):
                _add_block_event(blocks, told)
        self._messages.append({"role": "assistant", "content": [_ended(block) for block in blocks]})


class CompletionClient:
    """Goes on from its own text."""

    def __init__(self, model: TextModel) -> None:
        self._model = model
        self._text = ""

    def ask(self, text: str) -> None:
        self._text += text or " "

    def give_results(self, calls: Sequence[FinishedToolCall], text: str) -> None:
        self._text += text * len(calls)

    def request(self) -> AnswerRequest:
        body = check(sent({"prompt": self._text, "echo": True}), CompletionBody)
        return read_completion(body, self._model, max_choices=1, headers={}, client="me").answer_requests[0]

    def take(self, answer: Answer, n_split: int | None) -> None:
        del n_split
        self._text += answer.reasoning + answer.content + "".join(call.arguments for call in answer.calls)


def sent(body: dict[str, Any]) -> dict[str, Any]:
    """As the transport hands it on: through JSON, without halves of surrogate pairs."""
    whole: dict[str, Any] = _whole(json.loads(json.dumps(body)))
    return whole


def received(text: str) -> Any:
    """Of a client that takes only what JSON has."""
    return json.loads(text, parse_constant=_refuse)


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return whole_characters(value)
    if isinstance(value, dict):
        return {whole_characters(key): _whole(item) for key, item in value.items()}
    return [_whole(item) for item in value] if isinstance(value, list) else value


def _split(text: str, n: int) -> list[str]:
    return [text[at : at + n] for at in range(0, len(text), n)]


def _sse(data: bytes) -> list[Any]:
    lines = [line.removeprefix(b"data: ") for line in data.split(b"\n") if line.startswith(b"data: ")]
    return [received(line.decode()) for line in lines if line != b"[DONE]"]


def _add_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for field in ("content", "reasoning_content"):
        if delta.get(field) is not None:
            message[field] = (message.get(field) or "") + delta[field]
    for piece in delta.get("tool_calls") or ():
        calls = message.setdefault("tool_calls", [])
        if piece["index"] == len(calls):
            calls.append({"id": piece["id"], "type": "function", "function": dict(piece["function"])})
        else:
            calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]


def _add_block_event(blocks: list[dict[str, Any]], event: dict[str, Any]) -> None:
    if event["type"] == "content_block_start":
        blocks.append(dict(event["content_block"]))
    elif event["type"] == "content_block_delta":
        delta, block = event["delta"], blocks[event["index"]]
        field = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}.get(delta["type"])
        if field is not None:
            block[field] += delta[field]
        else:
            block["partial_json"] = block.get("partial_json", "") + delta["partial_json"]


def _ended(block: dict[str, Any]) -> dict[str, Any]:
    """What a client makes of a call's arguments: their value, or nothing where they have none."""
    if block["type"] != "tool_use":
        return block
    try:
        value = json.loads(block.pop("partial_json", "") or "{}")
    except (ValueError, RecursionError):
        value = {}
    return {**block, "input": value}
