"""An answer in the events of Anthropic's stream, or as one message. Bytes out; no I/O and no clock.

A message is a row of blocks: thinking, text, tool_use; each is opened, filled and closed before the next. A text that
is all white space opens no block: clients may not send such a block back. An answer that says nothing has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from luce.supervisor.http.answering.answer_events import (
    AnswerEvent,
    AnswerFinished,
    ChoiceFinished,
    ContentPiece,
    FinishReason,
    ReasoningPiece,
    ToolCallPiece,
    Usage,
)
from luce.supervisor.http.anthropic.opaque import signature_of_hidden, signature_of_shown, tool_use_id
from luce.supervisor.http.anthropic.streamed_input import StreamedInput
from luce.supervisor.http.errors import ApiError
from luce.supervisor.http.prompts.history.arguments import object_of
from luce.supervisor.http.transport.error_bodies import anthropic_error

PING = b'event: ping\ndata: {"type": "ping"}\n\n'

_STOP_REASONS = {
    FinishReason.STOP: "end_turn",
    FinishReason.STOP_TEXT: "stop_sequence",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
}
_MESSAGE_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'


def message_json(
    message_id: str,
    model: str,
    finished: ChoiceFinished,
    usage: Usage,
    *,
    hides_thinking: bool,
    n_ctx: int | None = None,
) -> dict[str, Any]:
    """The answer to a request that is not streamed. `n_ctx`: of a client that knows the word for a full context."""
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": _blocks(finished, hides_thinking=hides_thinking),
        "stop_reason": _stop_reason(finished, usage, n_ctx),
        "stop_sequence": finished.stop_text,
        "usage": usage_json(usage),
        **_applied_edits(usage),
        **usage.told_of_schemas(),
    }


def _stop_reason(finished: ChoiceFinished, usage: Usage, n_ctx: int | None) -> str:
    is_full = finished.reason is FinishReason.LENGTH and usage.fills(n_ctx)
    return "model_context_window_exceeded" if is_full else _STOP_REASONS[finished.reason]


def _applied_edits(usage: Usage) -> dict[str, Any]:
    if not usage.edits:
        return {}
    edits = [
        {"type": "clear_thinking_20251015", "cleared_thinking_turns": applied.n_cleared}
        if applied.edit.clears == "thinking"
        else {"type": "clear_tool_uses_20250919", "cleared_tool_uses": applied.n_cleared}
        for applied in usage.edits
    ]
    tokens = [{"cleared_input_tokens": applied.n_tokens} for applied in usage.edits]
    return {"context_management": {"applied_edits": [edit | n for edit, n in zip(edits, tokens, strict=True)]}}


def usage_json(usage: Usage) -> dict[str, Any]:
    """What the cache served is not among input_tokens. Nothing is ever written to a cache at a price, so that
    cache_creation_input_tokens is 0. At least one token counts as input, where all were cached too: clients take 0 for
    "not told" and would go on with message_start's count, which is the whole prompt's."""
    n_fresh = max(usage.n_prompt - usage.n_cached, 1)
    return {
        "input_tokens": n_fresh,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": max(usage.n_prompt - n_fresh, 0),
        "output_tokens": usage.n_generated,
        "output_tokens_details": {"thinking_tokens": usage.n_reasoning},
        "luce": usage.extension(),
    }


class MessageStream:
    """The events of one streamed message, each call's as the bytes of one write."""

    def __init__(
        self, message_id: str, request_id: str, model: str, *, hides_thinking: bool, n_ctx: int | None = None
    ) -> None:
        """`n_ctx`: of a client that knows the word for a full context."""
        self._message_id = message_id
        self._request_id = request_id
        self._model = model
        self._hides_thinking = hides_thinking
        self._n_ctx = n_ctx
        self._n_blocks = 0
        self._block: _Block | None = None
        self._held = ""  # white space that may be all there is
        self._n_calls = 0
        self._finished: ChoiceFinished | None = None

    def first(self, n_prompt: int) -> bytes:
        """Before anything is read of the prompt: how much of it the cache serves is told at the end."""
        message: dict[str, Any] = {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {
                "input_tokens": n_prompt,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": 0,
            },
        }
        return _event("message_start", {"type": "message_start", "message": message}) + PING

    def keep_alive(self) -> bytes:
        return PING

    def fail(self, error: ApiError) -> bytes:
        return _event("error", anthropic_error(error, self._request_id))

    def feed(self, event: AnswerEvent) -> bytes:
        """Empty where a client has nothing to learn yet."""
        match event:
            case ContentPiece(text=text):
                return self._text(text)
            case ReasoningPiece(text=text):
                return self._thinking(text)
            case ToolCallPiece():
                return self._tool_use(event)
            case ChoiceFinished():
                self._finished = event
                return b""
            case AnswerFinished(usage):
                return self._end(usage)
            case _:
                return b""

    def _text(self, text: str) -> bytes:
        block = self._block
        if isinstance(block, _TextBlock):
            return block.delta(text)
        text = self._held + text
        if not text.strip():
            self._held = text
            return b""
        return self._open(_TextBlock(self._n_blocks)) + self._delta(text)

    def _thinking(self, text: str) -> bytes:
        block = self._block
        if isinstance(block, _ThinkingBlock):
            return block.delta(text)
        self._held = ""
        if not text.strip():
            return b""
        return self._open(_ThinkingBlock(self._n_blocks, hidden=self._hides_thinking)) + self._delta(text)

    def _tool_use(self, piece: ToolCallPiece) -> bytes:
        block = self._block
        if isinstance(block, _ToolBlock) and block.number == piece.index:
            return block.delta(piece.arguments)
        # calls come one after the other: luce_text adds only to the last one
        assert piece.index == self._n_calls, f"tool call {piece.index} goes on after {self._n_calls} calls"
        self._n_calls += 1
        opened = self._open(_ToolBlock(self._n_blocks, piece))
        return opened + self._delta(piece.arguments)

    def _open(self, block: _Block) -> bytes:
        closed = self._close()
        self._held = ""
        self._block = block
        self._n_blocks += 1
        return closed + block.start()

    def _delta(self, text: str) -> bytes:
        return self._block.delta(text) if self._block is not None else b""

    def _close(self) -> bytes:
        block, self._block = self._block, None
        return block.stop() if block is not None else b""

    def _end(self, usage: Usage) -> bytes:
        finished = self._finished
        assert finished is not None, "an answer ends after its choice"
        delta = {"stop_reason": _stop_reason(finished, usage, self._n_ctx), "stop_sequence": finished.stop_text}
        told = {"type": "message_delta", "delta": delta, "usage": usage_json(usage), **_applied_edits(usage)}
        ended = _event("message_delta", told)
        return self._close() + ended + _MESSAGE_STOP


class _Block:
    """One block of a message. What is the same in each of its deltas is written once."""

    def __init__(self, index: int, delta_type: str, field: str) -> None:
        self._index = index
        self._head = (
            f'event: content_block_delta\ndata: {{"type":"content_block_delta","index":{index},'
            f'"delta":{{"type":"{delta_type}","{field}":'
        )

    def start(self) -> bytes:
        block = {"type": "content_block_start", "index": self._index, "content_block": self._empty()}
        return _event("content_block_start", block)

    def delta(self, text: str) -> bytes:
        return f"{self._head}{quoted(text)}}}}}\n\n".encode()

    def stop(self) -> bytes:
        return f'event: content_block_stop\ndata: {{"type":"content_block_stop","index":{self._index}}}\n\n'.encode()

    def _empty(self) -> dict[str, Any]:
        raise NotImplementedError


class _TextBlock(_Block):
    def __init__(self, index: int) -> None:
        super().__init__(index, "text_delta", "text")

    def _empty(self) -> dict[str, Any]:
        return {"type": "text", "text": ""}


class _ThinkingBlock(_Block):
    def __init__(self, index: int, *, hidden: bool) -> None:
        super().__init__(index, "thinking_delta", "thinking")
        self._hidden = hidden
        self._texts: list[str] = []

    def delta(self, text: str) -> bytes:
        self._texts.append(text)
        return b"" if self._hidden else super().delta(text)

    def stop(self) -> bytes:
        delta = {"type": "signature_delta", "signature": _signature("".join(self._texts), hidden=self._hidden)}
        event = {"type": "content_block_delta", "index": self._index, "delta": delta}
        return _event("content_block_delta", event) + super().stop()

    def _empty(self) -> dict[str, Any]:
        return {"type": "thinking", "thinking": "", "signature": ""}


class _ToolBlock(_Block):
    def __init__(self, index: int, call: ToolCallPiece) -> None:
        super().__init__(index, "input_json_delta", "partial_json")
        self.number = call.index
        self._id = tool_use_id(call.id)
        self._name = call.name
        self._input = StreamedInput()

    def delta(self, text: str) -> bytes:
        whole = self._input.feed(text)
        return super().delta(whole) if whole or not text else b""

    def stop(self) -> bytes:
        rest = self._input.finish()
        return (super().delta(rest) if rest else b"") + super().stop()

    def _empty(self) -> dict[str, Any]:
        return {"type": "tool_use", "id": self._id, "name": self._name, "input": {}}


def _blocks(finished: ChoiceFinished, *, hides_thinking: bool) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if finished.reasoning.strip():
        text = "" if hides_thinking else finished.reasoning
        signature = _signature(finished.reasoning, hidden=hides_thinking)
        blocks.append({"type": "thinking", "thinking": text, "signature": signature})
    shown = 0
    for call in finished.tool_calls:
        n_before = len(finished.content) if call.n_before is None else call.n_before
        blocks += _texts(finished.content[shown:n_before])
        shown = n_before
        blocks.append(
            {"type": "tool_use", "id": tool_use_id(call.id), "name": call.name, "input": object_of(call.arguments)}
        )
    return blocks + _texts(finished.content[shown:])


def _texts(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _signature(reasoning: str, *, hidden: bool) -> str:
    return signature_of_hidden(reasoning) if hidden else signature_of_shown(reasoning)


def _event(name: str, data: Mapping[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
