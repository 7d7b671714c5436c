"""A chat request on its way into the engine: the prompt's ids and what sampling needs, as plain values.

Knows the shapes of luce_text's JSON; knows nothing of the wire, of HTTP's shapes or of parsing answers.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

from luce.supervisor.text.errors import BadRequestError
from luce.supervisor.text.image_markers import MARKER_BYTES, MARKER_PREFIX
from luce.supervisor.text.library import ChatHandle, MessageHandle, encode_text, load_library


class ChatMessage(dict[str, Any]):
    """A message that nobody changes any more: the library reads it once, however often it is rendered."""

    @cached_property
    def handle(self) -> MessageHandle:
        """Raises BadRequestError."""
        return MessageHandle(load_library(), encode_message(self))


TriggerKind = Literal["word", "pattern", "full", "token"]


@dataclass(frozen=True)
class Trigger:
    """What switches a lazy grammar on. `token` is set for kind "token", where `value` is its spelling."""

    kind: TriggerKind
    value: str
    token: int | None


@dataclass(frozen=True)
class Thinking:
    """How the model marks its reasoning, for a budget."""

    supported: bool
    start: str
    ends: tuple[str, ...]
    start_tokens: tuple[int, ...]
    ends_tokens: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Delimiter:
    """The text with which a message of a role begins."""

    role: str
    text: str
    tokens: tuple[int, ...]


class MessageMark(NamedTuple):
    """The position in the prompt's ids at which a message begins. `role` is empty where it is not known."""

    token: int
    byte: int
    role: str


_ROLES = ("", "system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True)
class RenderedChat:
    """A rendered chat request. `tokens` is what the engine gets; texts of messages are never special tokens in it."""

    prompt_bytes: bytes
    tokens: array[int]
    format: str
    grammar: str
    grammar_lazy: bool
    triggers: tuple[Trigger, ...]
    preserved: tuple[int, ...]
    generation_prompt: str
    additional_stops: tuple[str, ...]
    thinking: Thinking
    delimiters: tuple[Delimiter, ...]
    marks: tuple[MessageMark, ...]
    text_spans: tuple[tuple[int, int], ...]
    handle: ChatHandle = field(repr=False, compare=False)

    @cached_property
    def prompt(self) -> str:
        return self.prompt_bytes.decode(errors="replace")

    @classmethod
    def from_json(
        cls, values: Mapping[str, Any], prompt: bytes, tokens: array[int], marks: array[int], handle: ChatHandle
    ) -> RenderedChat:
        """`marks`: three numbers each, as luce_text.h tells them."""
        thinking = values["thinking"]
        return cls(
            prompt_bytes=prompt,
            tokens=tokens,
            format=values["format"],
            grammar=values["grammar"],
            grammar_lazy=values["grammar_lazy"],
            triggers=tuple(
                Trigger(trigger["type"], trigger["value"], trigger["token"] if trigger["type"] == "token" else None)
                for trigger in values["triggers"]
            ),
            preserved=tuple(values["preserved"]),
            generation_prompt=values["generation_prompt"],
            additional_stops=tuple(values["additional_stops"]),
            thinking=Thinking(
                thinking["supported"],
                thinking["start"],
                tuple(thinking["ends"]),
                tuple(thinking["start_tokens"]),
                tuple(tuple(end) for end in thinking["ends_tokens"]),
            ),
            delimiters=tuple(
                Delimiter(delimiter["role"], delimiter["text"], tuple(delimiter["tokens"]))
                for delimiter in values["delimiters"]
            ),
            marks=tuple(map(MessageMark, marks[0::3], marks[1::3], map(_ROLES.__getitem__, marks[2::3]))),
            text_spans=tuple((begin, end) for begin, end in values["text_spans"]),
            handle=handle,
        )

    def close(self) -> None:
        """Frees the native side. Parsers that were made from it go on."""
        self.handle.close()


def encode_json(value: object) -> bytes:
    """JSON for the native library; lone surrogates and numbers that JSON lacks are the caller's error."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequestError(f"not expressible as JSON: {error}") from error


def encode_message(message: Mapping[str, Any]) -> bytes:
    """For `texts` of the native renderer (luce_text.h)."""
    content = message.get("content")
    if not isinstance(content, str):
        return encode_json(message)
    without = encode_json({key: message[key] for key in message if key != "content"})
    return b"%b\n%b" % (without, encode_text(content))


def request_json(
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: str | Mapping[str, Any] = "auto",
    parallel_tool_calls: bool = True,
    json_schema: Mapping[str, Any] | None = None,
    grammar: str | None = None,
    enable_thinking: bool = True,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool | Literal["content", "reasoning_content"] = False,
    reasoning_format: Literal["auto", "none", "deepseek", "deepseek-legacy"] = "auto",
    has_images: bool = False,
    cache_salt: str = "",
) -> tuple[bytes, bytes]:
    """A request for the native renderer, and the messages that go beside it. `messages` and `tools` have the shapes of
    OpenAI's chat completions. `has_images`: markers in their texts (image_markers.py) stand for images. `cache_salt`:
    what was read and tokenised before is known again for the same one only."""
    encoded = list(map(encode_message, messages))
    encoded_tools = b"" if tools is None else encode_json(list(tools))
    request = encode_json(
        {
            "message_bytes": list(map(len, encoded)),
            **({"tools_bytes": len(encoded_tools)} if tools is not None else {}),
            "tool_choice": tool_choice,
            "parallel_tool_calls": parallel_tool_calls,
            "json_schema": json_schema,
            "grammar": grammar,
            "enable_thinking": enable_thinking,
            "chat_template_kwargs": chat_template_kwargs,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "reasoning_format": reasoning_format,
            "image_markers": {"prefix": MARKER_PREFIX, "bytes": MARKER_BYTES} if has_images else None,
            "cache_salt": cache_salt,
        }
    )
    return request, b"".join((encoded_tools, *encoded))


def schema_to_grammar(schema: Mapping[str, Any] | bool) -> str:
    """A JSON schema as a GBNF grammar."""
    text = encode_json(schema)
    return load_library().text_of("schema_to_grammar", text, len(text)).decode()
