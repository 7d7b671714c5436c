"""Output items of the Responses API while they form: reasoning, message, function call, custom tool call.

Each knows its events and its snapshots. Pure: pieces in, events as (type, the rest of its JSON object) out. Knows
neither sequence numbers nor the response around it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from luce.supervisor.http.answering.answer_events import Logprob, TokenLogprob
from luce.supervisor.http.openai_responses.items import CUSTOM_INPUT, pack_reasoning
from luce.supervisor.http.openai_responses.tools import OfferedTool
from luce.supervisor.http.openai_shared.shapes import best_of, finite, token_text

Event = tuple[str, str]
"""Its type, and its other fields as JSON without braces."""

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_decoder = json.JSONDecoder(strict=False)


class OutputItem(Protocol):
    """One item of the answer. `open` once, then `piece` for each that comes, `close` once; `snapshot` at any time."""

    @property
    def is_broken_off(self) -> bool:
        """Whatever the answer ended with: it cannot be whole as it stands."""

    def open(self) -> Iterator[Event]: ...
    def piece(self, text: str, logprobs: Sequence[TokenLogprob]) -> Iterator[Event]: ...
    def close(self, status: str) -> Iterator[Event]: ...
    def snapshot(self, status: str) -> dict[str, Any]: ...


def fields(**values: object) -> str:
    return _encode(values)[1:-1]


class _TextItem:
    """What messages and reasoning share: one content part that grows."""

    _prefix: str
    _delta: str
    _done: str

    def __init__(self, index: int) -> None:
        self.id = f"{self._prefix}_{secrets.token_hex(16)}"
        self._index = index
        self._texts: list[str] = []
        self._place = fields(item_id=self.id, output_index=index, content_index=0)
        self._delta_head = f'{self._place},"delta":'

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def is_broken_off(self) -> bool:
        return False

    def open(self) -> Iterator[Event]:
        yield "response.output_item.added", fields(output_index=self._index, item=self._opened())
        yield "response.content_part.added", f"{self._place},{fields(part=self._part(''))}"

    def close(self, status: str) -> Iterator[Event]:
        text = self.text
        yield self._done, f"{self._place},{fields(text=text, **self._done_fields())}"
        yield "response.content_part.done", f"{self._place},{fields(part=self._part(text))}"
        yield "response.output_item.done", fields(output_index=self._index, item=self.snapshot(status))

    def _opened(self) -> dict[str, Any]:
        raise NotImplementedError

    def _part(self, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def _done_fields(self) -> dict[str, Any]:
        return {}

    def snapshot(self, status: str) -> dict[str, Any]:
        raise NotImplementedError


class MessageItem(_TextItem):
    _prefix = "msg"
    _delta = "response.output_text.delta"
    _done = "response.output_text.done"

    def __init__(self, index: int, *, with_logprobs: bool) -> None:
        super().__init__(index)
        self._with_logprobs = with_logprobs
        self._logprobs: list[dict[str, Any]] = []

    def piece(self, text: str, logprobs: Sequence[TokenLogprob]) -> Iterator[Event]:
        self._texts.append(text)
        if not self._with_logprobs:
            if text:
                yield self._delta, f'{self._delta_head}{_encode(text)},"logprobs":[]'
            return
        entries = [_logprob(logprob) for logprob in logprobs]
        self._logprobs += entries
        if text or entries:
            yield self._delta, f'{self._delta_head}{_encode(text)},"logprobs":{_encode(entries)}'

    def _opened(self) -> dict[str, Any]:
        return self.snapshot("in_progress") | {"content": []}

    def _part(self, text: str) -> dict[str, Any]:
        return {
            "type": "output_text",
            "annotations": [],
            "logprobs": self._logprobs if text else [],
            "text": text,
        }

    def _done_fields(self) -> dict[str, Any]:
        return {"logprobs": self._logprobs}

    def snapshot(self, status: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [self._part(self.text)],
        }


class ReasoningItem(_TextItem):
    """The model's own reasoning, as `reasoning_text`; there is no summary, since nobody makes one."""

    _prefix = "rs"
    _delta = "response.reasoning_text.delta"
    _done = "response.reasoning_text.done"

    def __init__(self, index: int, *, is_packed: bool) -> None:
        super().__init__(index)
        self._is_packed = is_packed

    def piece(self, text: str, logprobs: Sequence[TokenLogprob]) -> Iterator[Event]:
        del logprobs  # the API has no place for them here
        if text:
            self._texts.append(text)
            yield self._delta, f"{self._delta_head}{_encode(text)}"

    def _opened(self) -> dict[str, Any]:
        return {"id": self.id, "type": "reasoning", "status": "in_progress", "summary": [], "content": []}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": text}

    def snapshot(self, status: str) -> dict[str, Any]:
        text = self.text
        return {
            "id": self.id,
            "type": "reasoning",
            "status": status,
            "summary": [],
            "content": [self._part(text)],
            "encrypted_content": pack_reasoning(text) if self._is_packed else None,
        }


class FunctionCallItem:
    _prefix, _type = "fc", "function_call"

    def __init__(self, index: int, tool: OfferedTool, call_id: str) -> None:
        self.id = f"{self._prefix}_{secrets.token_hex(16)}"
        self._index = index
        self._tool = tool
        self._call_id = call_id
        self._arguments: list[str] = []
        self._place = fields(item_id=self.id, output_index=index)
        self._delta_head = f'{self._place},"delta":'

    @property
    def is_broken_off(self) -> bool:
        arguments = "".join(self._arguments)
        try:
            return arguments.lstrip().startswith("{") and _decoder.decode(arguments) is None
        except (ValueError, RecursionError):
            return True

    def open(self) -> Iterator[Event]:
        yield "response.output_item.added", fields(output_index=self._index, item=self.snapshot("in_progress"))

    def piece(self, text: str, logprobs: Sequence[TokenLogprob]) -> Iterator[Event]:
        del logprobs
        if text:
            self._arguments.append(text)
            yield "response.function_call_arguments.delta", f"{self._delta_head}{_encode(text)}"

    def close(self, status: str) -> Iterator[Event]:
        done = fields(name=self._tool.name, arguments="".join(self._arguments))
        yield "response.function_call_arguments.done", f"{self._place},{done}"
        yield "response.output_item.done", fields(output_index=self._index, item=self.snapshot(status))

    def snapshot(self, status: str) -> dict[str, Any]:
        item: dict[str, Any] = {
            "id": self.id,
            "type": self._type,
            "status": status,
            "call_id": self._call_id,
            "name": self._tool.name,
            **self._given(status),
        }
        if self._tool.namespace is not None:
            item["namespace"] = self._tool.namespace
        return item

    def _given(self, status: str) -> dict[str, str]:  # noqa: ARG002
        return {"arguments": "".join(self._arguments)}


class CustomCallItem(FunctionCallItem):
    """The model writes {"input": "…"}; the client gets the text alone, once it is whole."""

    _prefix, _type = "ctc", "custom_tool_call"

    def piece(self, text: str, logprobs: Sequence[TokenLogprob]) -> Iterator[Event]:
        del logprobs
        self._arguments.append(text)
        return iter(())

    def close(self, status: str) -> Iterator[Event]:
        given = custom_input("".join(self._arguments))
        yield "response.custom_tool_call_input.delta", f"{self._place},{fields(delta=given)}"
        yield "response.custom_tool_call_input.done", f"{self._place},{fields(input=given)}"
        yield "response.output_item.done", fields(output_index=self._index, item=self.snapshot(status))

    def _given(self, status: str) -> dict[str, str]:
        return {"input": "" if status == "in_progress" else custom_input("".join(self._arguments))}


def call_item(index: int, tool: OfferedTool, call_id: str) -> FunctionCallItem:
    return (CustomCallItem if tool.is_custom else FunctionCallItem)(index, tool, call_id)


def custom_input(arguments: str) -> str:
    """The text in {"input": "…"}, also where the answer was cut off within it; what is no such object, as it is."""
    value = _parsed(arguments)
    if value is None:
        return _cut_off(arguments)
    given = value.get(CUSTOM_INPUT) if isinstance(value, dict) else None
    return _whole(given) if isinstance(given, str) else arguments


def _cut_off(arguments: str) -> str:
    """The text that had begun, without an escape (\\u00e) that was not finished."""
    _, begun, rest = arguments.partition(f'"{CUSTOM_INPUT}"')
    opening = rest.lstrip(" \t\r\n:")
    if not begun or not opening.startswith('"'):
        return arguments
    for n_cut in range(min(6, len(opening))):
        try:
            value, _ = _decoder.raw_decode(opening[: len(opening) - n_cut] + '"')
        except ValueError:
            continue
        return _whole(value)
    return arguments


def _parsed(text: str) -> Any:
    try:
        return _decoder.decode(text)
    except (ValueError, RecursionError):
        return None


def _whole(text: str) -> str:
    """Without halves of surrogate pairs: nobody can send them back."""
    return text.encode("utf-8", "ignore").decode()


def _logprob(logprob: TokenLogprob) -> dict[str, Any]:
    return _entry(logprob.chosen) | {"top_logprobs": [_entry(other) for other in best_of(logprob)]}


def _entry(logprob: Logprob) -> dict[str, Any]:
    return {"token": token_text(logprob), "bytes": list(logprob.bytes), "logprob": finite(logprob.logprob)}
