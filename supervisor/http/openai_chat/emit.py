"""A chat completion's answer in OpenAI's shapes: the chunks of a stream in their order, or one object.

Pure: events in, bytes out. What is the same in all chunks of a stream is made once; a piece costs one small string.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from luce.supervisor.http.answering.answer_events import (
    AnswerEvent,
    AnswerFinished,
    ChoiceFinished,
    ContentPiece,
    Progress,
    PromptLogprobs,
    ReasoningPiece,
    TokenLogprob,
    ToolCallPiece,
    Usage,
)
from luce.supervisor.http.errors import ApiError
from luce.supervisor.http.openai_chat.parse import ParsedRequest
from luce.supervisor.http.openai_shared.shapes import (
    FINISH_REASONS,
    ChunkStream,
    Envelope,
    chat_logprobs,
    encode,
    error_event,
    new_id,
    prompt_logprobs,
    text_json,
    timing_fields,
    usage_fields,
)

STREAM = "chat.completion.chunk"
WHOLE = "chat.completion"
_CALL_INDEX = b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}'
_CALL_BEGIN = b'{"tool_calls":[{"index":%d,"id":%b,"type":"function","function":{"name":%b,"arguments":%b}}]}'


class ChatStream(ChunkStream):
    """The events of one answer as chunks, each the bytes of `data:` lines and the blank line after them."""

    def __init__(self, parsed: ParsedRequest, model: str) -> None:
        envelope = Envelope(STREAM, model, new_id("chatcmpl"))
        n, times = parsed.answer_request.n, parsed.shows_timings
        super().__init__(envelope, b"delta", b"{}", n, counts=parsed.includes_usage, times=times)
        self._wish = parsed
        self._content = [begin + b'{"content":' for begin in self._begins]
        self._n_first_read: int | None = None

    def first(self, n_prompt: int) -> bytes:
        """The role."""
        if self._clock is not None:
            self._clock.n_prompt = n_prompt
        delta = b'{"role":"assistant","content":null}'
        return b"".join([begin + delta + self._goes_on for begin in self._begins])

    def fail(self, error: ApiError) -> bytes:
        return error_event(error)

    def feed(self, event: AnswerEvent) -> bytes:
        """The chunks for an event; empty where it needs none."""
        match event:
            case ContentPiece():
                if not event.text and not event.logprobs:
                    return b""
                begin = self._content[event.choice] + text_json(event.text) + b"}"
                return self._timed(begin + self._rest(event.logprobs))
            case ReasoningPiece():
                if not event.text:
                    return b""
                delta = b'{"reasoning_content":%b}' % text_json(event.text)
                return self._timed(self._begins[event.choice] + delta + self._goes_on)
            case ToolCallPiece():
                return self._timed(self._begins[event.choice] + self._call_delta(event) + self._goes_on)
            case ChoiceFinished():
                return self._finish_choice(event.choice, finish_reason(event, is_legacy=self._wish.is_legacy))
            case Progress():
                return self._progress(event)
            case AnswerFinished():
                return self._finish(event.usage)
            case PromptLogprobs():
                return b""  # only answers that are given whole have a place for them

    def _rest(self, logprobs: Sequence[TokenLogprob]) -> bytes:
        """What comes after a delta of content. Those who want logprobs get a list, if an empty one: as with OpenAI, the
        tokens of all lists add up to the content."""
        if self._wish.answer_request.n_logprobs is None:
            return self._goes_on
        return b',"logprobs":%b,"finish_reason":null}' % encode(chat_logprobs(logprobs)) + self._end

    def _call_delta(self, piece: ToolCallPiece) -> bytes:
        arguments = text_json(piece.arguments)
        if self._wish.is_legacy:
            if piece.name:
                return b'{"function_call":{"name":%b,"arguments":%b}}' % (text_json(piece.name), arguments)
            return b'{"function_call":{"arguments":%b}}' % arguments
        if piece.name or piece.id:
            return _CALL_BEGIN % (piece.index, text_json(piece.id), text_json(piece.name), arguments)
        return _CALL_INDEX % (piece.index, arguments)

    def _progress(self, event: Progress) -> bytes:
        """llama-server's `prompt_progress`, for those who asked: otherwise the keep-alive says enough."""
        if not self._wish.shows_progress:
            return b""
        if self._n_first_read is None:
            self._n_first_read = event.n_done
        told = {"total": event.n_total, "cache": self._n_first_read, "processed": event.n_done}
        body = b"{}%b" % self._goes_on
        return self._begins[0] + body[: -len(b"}\n\n")] + b',"prompt_progress":%b}\n\n' % encode(told)


def whole_chat(choices: Sequence[ChoiceFinished], usage: Usage, parsed: ParsedRequest, model: str) -> dict[str, Any]:
    """The answer as one object, as it is given without streaming."""
    has_logprobs = parsed.answer_request.n_logprobs is not None
    scored = choices[0].prompt_logprobs
    return Envelope(WHOLE, model, new_id("chatcmpl")).opening() | {
        "choices": [_whole_choice(choice, parsed, has_logprobs=has_logprobs) for choice in choices],
        "usage": usage_fields(usage),
        "timings": timing_fields(usage),
        **usage.told_of_schemas(),
        **({} if scored is None else {"prompt_logprobs": prompt_logprobs(scored.tokens)}),
    }


def finish_reason(choice: ChoiceFinished, *, is_legacy: bool) -> str:
    reason = FINISH_REASONS[choice.reason]
    return "function_call" if is_legacy and reason == "tool_calls" else reason


def _whole_choice(choice: ChoiceFinished, parsed: ParsedRequest, *, has_logprobs: bool) -> dict[str, Any]:
    calls = choice.tool_calls
    message: dict[str, Any] = {"role": "assistant", "content": choice.content or (None if calls else "")}
    message["refusal"] = None
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if calls and parsed.is_legacy:
        message["function_call"] = {"name": calls[0].name, "arguments": calls[0].arguments}
    elif calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return {
        "index": choice.choice,
        "message": message,
        "logprobs": chat_logprobs(choice.logprobs) if has_logprobs else None,
        "finish_reason": finish_reason(choice, is_legacy=parsed.is_legacy),
    }
