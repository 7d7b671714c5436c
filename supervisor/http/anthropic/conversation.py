"""Anthropic's `system` and `messages` as the messages that chat templates know. Pure.

Tool results become `tool` messages, before whatever else the same turn says; neighbours of one role become one
message; thinking becomes reasoning_content, and the template decides what it keeps of it. Which text goes where is
settled here, how texts are unified for the prefix cache is not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from luce.supervisor.http.anthropic.content import (
    Block,
    invalid,
    log_left_out,
    result_content,
    string_field,
    type_of,
    user_part,
    user_text,
)
from luce.supervisor.http.anthropic.opaque import MAX_RESTORED_BYTES, TooMuchReasoningError, call_id_of, reasoning_of
from luce.supervisor.http.anthropic.shapes import InputMessage, Tool

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    messages: Sequence[Mapping[str, Any]]
    added_tools: Sequence[Tool]
    """Tools that were defined in the middle of it."""
    continues_last: bool
    """The last message is the assistant's and has words that the answer goes on from."""


def read_conversation(messages: Sequence[InputMessage], system: str | Sequence[Block] | None) -> Conversation:
    """Raises ApiError."""
    reader = _Reader()
    if system:
        reader.add_system(system, "system")
    last_user = max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)
    for index, message in enumerate(messages):
        path = f"messages.{index}.content"
        match message.role:
            case "user":
                reader.add_user(message.content, path)
            case "assistant":
                reader.add_assistant(message.content, path)
            case "system":
                if message.clear_at != "next_user_message" or index > last_user:
                    reader.add_system(message.content, path)
    read = reader.finish()
    return Conversation(read, reader.added_tools, _settle_last(read))


def _settle_last(messages: list[Message]) -> bool:
    if not messages or messages[-1]["role"] != "assistant":
        return False
    last = messages[-1]
    if "tool_calls" in last:
        raise invalid(
            "messages",
            "`tool_use` ids were found without `tool_result` blocks immediately after: "
            "each `tool_use` block must have a corresponding `tool_result` block in the next message",
        )
    if not last["content"] and "reasoning_content" not in last:
        messages.pop()  # nothing has been begun
        return False
    return True


@dataclass(slots=True)
class _AssistantTurn:
    """What is put together of an assistant's blocks: without anything between them, as they were generated."""

    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[Message] = field(default_factory=list)

    def message(self) -> Message:
        message: Message = {"role": "assistant", "content": "".join(self.texts)}
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


@dataclass(slots=True)
class _Reader:
    added_tools: list[Tool] = field(default_factory=list)
    _messages: list[Message] = field(default_factory=list)
    _turn: _AssistantTurn | None = None
    _tool_names: dict[str, str] = field(default_factory=dict)
    _restorable_bytes: int = MAX_RESTORED_BYTES

    def finish(self) -> list[Message]:
        """What has been read so far."""
        if self._turn is not None:
            self._messages.append(self._turn.message())
            self._turn = None
        return self._messages

    def add_system(self, content: str | Sequence[Block], path: str) -> None:
        if isinstance(content, str):
            if content:
                self.finish().append({"role": "system", "content": content})
            return
        parts = []
        for index, block in enumerate(content):
            text = self._system_text(block, f"{path}.{index}")
            if text:
                parts.append(_part(text))
        if parts:
            self.finish().append({"role": "system", "content": parts})

    def _system_text(self, block: Block, path: str) -> str:
        match kind := type_of(block, path):
            case "text":
                return string_field(block, "text", path)
            case "tool_addition" | "tool_removal":
                return self._tool_change(block, kind, path)
            case _:
                log_left_out("blocks in system messages", kind)
                return ""

    def _tool_change(self, block: Block, kind: str, path: str) -> str:
        """The list of tools stands at a prompt's start: a change is told where it happens, so that what was read
        before stays good. Only a new definition has to go into the list."""
        tool = block.get("tool")
        if not isinstance(tool, dict):
            raise invalid(f"{path}.tool", "Field required")
        if kind == "tool_addition" and tool.get("type") == "tool_definition":
            try:
                defined = Tool.model_validate(tool.get("definition"))
            except ValidationError:
                raise invalid(f"{path}.tool.definition", "Input should be a tool") from None
            self.added_tools.append(defined)
            name = defined.name
        else:
            name = tool.get("name")
        if not isinstance(name, str) or not name:
            return ""
        return f"The tool {name} is {'now' if kind == 'tool_addition' else 'no longer'} available."

    def add_user(self, content: str | Sequence[Block], path: str) -> None:
        if isinstance(content, str):
            self._append_user(content)
            return
        parts = []
        for index, block in enumerate(content):
            at = f"{path}.{index}"
            if type_of(block, at) == "tool_result":
                self._append_result(block, at)
            elif (part := user_part(block, at)) is not None:
                parts.append(part)
        if parts or not content:
            self._append_user(parts)

    def _append_user(self, content: str | list[Message]) -> None:
        messages = self.finish()
        last = messages[-1] if messages else None
        if last is None or last["role"] != "user":
            messages.append({"role": "user", "content": content or ""})
        else:
            if isinstance(last["content"], str):
                last["content"] = _parts(last["content"])
            last["content"] += _parts(content)

    def _append_result(self, block: Block, path: str) -> None:
        call_id = call_id_of(string_field(block, "tool_use_id", path))
        content = result_content(block.get("content"), f"{path}.content")
        if block.get("is_error") is True:
            content = _as_error(content)
        message: Message = {"role": "tool", "tool_call_id": call_id, "content": content}
        if call_id in self._tool_names:
            message["name"] = self._tool_names[call_id]
        self.finish().append(message)

    def add_assistant(self, content: str | Sequence[Block], path: str) -> None:
        if self._turn is None:
            self._turn = _AssistantTurn()
        if isinstance(content, str):
            self._turn.texts.append(content)
            return
        for index, block in enumerate(content):
            self._add_to_turn(self._turn, block, f"{path}.{index}")

    def _add_to_turn(self, turn: _AssistantTurn, block: Block, path: str) -> None:
        match kind := type_of(block, path):
            case "text":
                turn.texts.append(string_field(block, "text", path))
            case "thinking":
                if reasoning := self._reasoning(block, path):
                    turn.reasoning.append(reasoning)
            case "tool_use":
                turn.calls.append(self._tool_call(block, path))
            case "tool_result":
                raise invalid(path, "`tool_result` blocks can only be in `user` messages")
            case "image" | "document":
                turn.texts.append(user_text(block, path))
            case "compaction":
                summary = block.get("content")
                turn.texts.append(summary if isinstance(summary, str) else "")
            case _:
                log_left_out("blocks in assistant messages", kind)

    def _reasoning(self, block: Block, path: str) -> str:
        if text := string_field(block, "thinking", path):
            return text
        signature = block.get("signature")
        if not isinstance(signature, str):
            return ""
        try:
            text = reasoning_of(signature, self._restorable_bytes)
        except TooMuchReasoningError:
            raise invalid(f"{path}.signature", "the signatures of this request hold too much reasoning") from None
        self._restorable_bytes -= len(text.encode())
        return text

    def _tool_call(self, block: Block, path: str) -> Message:
        call_id = call_id_of(string_field(block, "id", path))
        name = string_field(block, "name", path)
        arguments = block.get("input", {})
        if not isinstance(arguments, dict):
            raise invalid(f"{path}.input", "Input should be a valid dictionary")
        self._tool_names[call_id] = name
        text = json.dumps(arguments, ensure_ascii=False)
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def _as_error(content: str | list[Message]) -> str | list[Message]:
    if isinstance(content, list):
        return [_part("Error:"), *content]
    return content if content.lower().startswith(("error", "<tool_use_error")) else f"Error: {content}"


def _part(text: str) -> Message:
    return {"type": "text", "text": text}


def _parts(content: str | list[Message]) -> list[Message]:
    if isinstance(content, str):
        return [_part(content)] if content else []
    return content
