"""Reading a model's answer as it comes: reasoning, content, tool calls.

Knows nothing of how requests are rendered, and nothing of HTTP's shapes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from luce.supervisor.text.chat import RenderedChat
from luce.supervisor.text.library import ParserHandle, c_id, c_ids, encode_text

CHECK_VARIABLE = "LUCE_CHECK_ANSWERS"
"""The environment variable that is "1" where a fault of the parser is to be an error: in tests."""


@dataclass(frozen=True)
class ReasoningDelta:
    """More of the model's reasoning."""

    text: str


@dataclass(frozen=True)
class ContentDelta:
    """More of the answer itself."""

    text: str


@dataclass(frozen=True)
class ToolCallDelta:
    """More of the tool call number `index`. Its first delta has the name; an id only if the model writes one."""

    index: int
    id: str
    name: str
    arguments: str


Delta = ReasoningDelta | ContentDelta | ToolCallDelta


@dataclass(frozen=True)
class ToolCall:
    """A tool call; `arguments` is JSON text, cut off where the answer was."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class AnswerMessage:
    """An answer, or what is there of it so far."""

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> AnswerMessage:
        calls = tuple(ToolCall(call["id"], call["name"], call["arguments"]) for call in values["tool_calls"])
        return cls(values["content"], values["reasoning_content"], calls)


@dataclass(frozen=True)
class FinishedAnswer:
    """The whole answer, and the deltas that were still missing. `consistent`: all deltas add up to the message."""

    message: AnswerMessage
    deltas: tuple[Delta, ...]
    consistent: bool
    n_mended: int
    """Places of the content that the model's format has none for, such as a call that breaks off."""
    n_unaccounted: int
    """Bytes that are neither in the message nor marks of the format: none, but for faults."""


class AnswerParser:
    """Reads one answer. One thread at a time may feed it."""

    def __init__(self, chat: RenderedChat, *, by_grammar: bool = False) -> None:
        """`by_grammar`: the output follows one from its beginning, so that marks may be spelled in letters."""
        library = chat.handle.library
        with chat.handle as handle:
            self._parser = ParserHandle(library, library.handle_of("parser_open", handle, int(by_grammar)))
        self._library = library

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._parser.close()

    def feed(self, token: int) -> tuple[Delta, ...]:
        """The next token that the model generated (not its end-of-generation token)."""
        with self._parser as handle:
            return _deltas(self._library.json_of("parser_feed_token", handle, c_id(token)))

    def feed_many(self, tokens: Sequence[int]) -> list[tuple[int, tuple[Delta, ...]]]:
        """The next tokens, at less than each of them would cost by itself: steps of so many tokens and what they add.
        Tokens that only go on with what those before them belonged to are one step."""
        ids = c_ids(tokens)
        with self._parser as handle:
            steps = self._library.json_of("parser_feed_tokens", handle, ids, len(tokens))
        return [(step["n"], _deltas(step["deltas"])) for step in steps]

    def feed_text(self, text: str | bytes) -> tuple[Delta, ...]:
        """More output as text, for callers that have no tokens."""
        data = encode_text(text) if isinstance(text, str) else text
        with self._parser as handle:
            return _deltas(self._library.json_of("parser_feed_text", handle, data, len(data)))

    @property
    def message(self) -> AnswerMessage:
        """What the deltas so far add up to."""
        with self._parser as handle:
            return AnswerMessage.from_json(self._library.json_of("parser_message", handle))

    @property
    def work(self) -> tuple[int, int]:
        """Bytes fed, and bytes that llama.cpp's parser went over: the measure of what parsing costs."""
        with self._parser as handle:
            return self._library.work(handle)

    def finish(self, *, truncated: bool = False) -> FinishedAnswer:
        """The answer is complete, or (truncated) a limit cut it off. What is not in the model's format is content."""
        with self._parser as handle:
            values = self._library.json_of("parser_finish", handle, int(truncated))
        finished = FinishedAnswer(
            AnswerMessage.from_json(values["message"]),
            _deltas(values["deltas"]),
            values["consistent"],
            values["mended"],
            values["unaccounted"],
        )
        if os.environ.get(CHECK_VARIABLE) == "1" and (finished.n_unaccounted or not finished.consistent):
            raise AssertionError(f"the parser has lost text, or shown other text than it has: {finished}")
        return finished


def _deltas(values: Iterable[Mapping[str, Any]]) -> tuple[Delta, ...]:
    return tuple([_delta(value) for value in values])


def _delta(value: Mapping[str, Any]) -> Delta:
    if "reasoning" in value:
        return ReasoningDelta(value["reasoning"])
    if "content" in value:
        return ContentDelta(value["content"])
    call = value["tool_call"]
    return ToolCallDelta(call["index"], call["id"], call["name"], call["arguments"])
