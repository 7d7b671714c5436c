"""Anthropic's `system` and `messages` as the messages that chat templates know. Pure.

Tool results become `tool` messages, before whatever else the same turn says; neighbours of one role become one
message; thinking becomes reasoning_content, and the template decides what it keeps of it. Which text goes where is
settled here, how texts are unified for the prefix cache is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from luce.supervisor.http.anthropic.content import Block, invalid, log_left_out, string_field
from luce.supervisor.http.anthropic.opaque import MAX_RESTORED_BYTES, TooMuchReasoningError, call_id_of, reasoning_of
from luce.supervisor.http.anthropic.shapes import InputMessage, Tool
from luce.supervisor.http.prompts.history.arguments import arguments_text
from luce.supervisor.http.prompts.history.parts import Content, dots, json_text, read_content, read_part, result_content
from luce.supervisor.http.prompts.history.turns import drop_empty_end, is_begun_answer, new_messages, role_of
from luce.supervisor.http.prompts.message_images import image_of
from luce.supervisor.http.prompts.notes import say_once

Message = dict[str, Any]

_ROLES = ("user", "assistant", "system")


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
        reader.add_system(system, "system", is_new=True)
    new = new_messages([message.role for message in messages])
    last_user = max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)
    for index, message in enumerate(messages):
        is_new, path = index in new, f"messages.{index}.content"
        if is_new:
            _check(message, f"messages.{index}")
        match role_of({**(message.model_extra or {}), "role": message.role}, _ROLES):
            case "assistant":
                reader.add_assistant(message.content, path, is_new=is_new)
            case "system":
                if message.clear_at != "next_user_message" or index > last_user:
                    reader.add_system(message.content, path, is_new=is_new)
            case _:
                reader.add_user(message.content, path, is_new=is_new)
    read = reader.finish()
    drop_empty_end(read)
    return Conversation(read, reader.added_tools, is_begun_answer(read))


def _check(message: InputMessage, path: str) -> None:
    if message.role not in _ROLES:
        raise invalid(f"{path}.role", "Input should be 'user', 'assistant' or 'system'")
    if not isinstance(message.content, str | list):
        raise invalid(f"{path}.content", "Input should be a string or a list of content blocks")


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

    def add_system(self, content: Any, path: str, *, is_new: bool) -> None:
        if isinstance(content, str):
            if content:
                self.finish().append({"role": "system", "content": content})
            return
        texts = (self._system_text(block, at, is_new=is_new) for block, at in _blocks(content, path))
        if parts := [_part(text) for text in texts if text]:
            self.finish().append({"role": "system", "content": parts})

    def _system_text(self, block: Any, path: str, *, is_new: bool) -> str:
        kind = block.get("type") if isinstance(block, dict) else None
        match kind:
            case "tool_addition" | "tool_removal":
                return self._tool_change(block, kind, path, is_new=is_new)
            case str() if kind != "text":
                log_left_out("blocks in system messages", kind)
                return ""
            case _:
                text: str = read_part(block, path, is_new=is_new, shows_images=False)["text"]
                return text

    def _tool_change(self, block: Block, kind: str, path: str, *, is_new: bool) -> str:
        """The list of tools stands at a prompt's start: a change is told where it happens, so that what was read
        before stays good. Only a new definition has to go into the list."""
        tool = block.get("tool")
        if not isinstance(tool, dict):
            if is_new:
                raise invalid(f"{path}.tool", "Field required")
            return ""
        if kind == "tool_addition" and tool.get("type") == "tool_definition":
            try:
                defined = Tool.model_validate(tool.get("definition"))
            except ValidationError:
                if is_new:
                    raise invalid(f"{path}.tool.definition", "Input should be a tool") from None
                return ""
            self.added_tools.append(defined)
            name = defined.name
        else:
            name = tool.get("name")
        if not isinstance(name, str) or not name:
            return ""
        return f"The tool {name} is {'now' if kind == 'tool_addition' else 'no longer'} available."

    def add_user(self, content: Any, path: str, *, is_new: bool) -> None:
        if not isinstance(content, list):
            self._append_user(read_content(content, path, is_new=is_new))
            return
        parts = []
        n_results = 0
        for block, at in _blocks(content, path):
            if isinstance(block, dict) and block.get("type") == "tool_result":
                self._append_result(block, at, is_new=is_new)
                n_results += 1
            else:
                part = read_part(block, at, is_new=is_new, shows_images=True)
                parts += [part] if image_of(part) or part["text"] else []
        if parts or not n_results:
            self._append_user(parts)

    def _append_user(self, content: Content) -> None:
        messages = self.finish()
        last = messages[-1] if messages else None
        if last is None or last["role"] != "user":
            messages.append({"role": "user", "content": content or ""})
        else:
            if isinstance(last["content"], str):
                last["content"] = _parts(last["content"])
            last["content"] += _parts(content)

    def _append_result(self, block: Block, path: str, *, is_new: bool) -> None:
        call_id = call_id_of(string_field(block, "tool_use_id", path, is_new=is_new))
        content = result_content(block.get("content"), f"{path}.content", numbered=dots)
        if block.get("is_error") is True:
            content = _as_error(content)
        message: Message = {"role": "tool", "tool_call_id": call_id, "content": content}
        if call_id in self._tool_names:
            message["name"] = self._tool_names[call_id]
        self.finish().append(message)

    def add_assistant(self, content: Any, path: str, *, is_new: bool) -> None:
        if not isinstance(content, list):
            self._begun().texts.append(str(read_content(content, path, is_new=is_new)))
            return
        self._begun()
        for block, at in _blocks(content, path):
            self._add_to_turn(block, at, is_new=is_new)

    def _begun(self) -> _AssistantTurn:
        if self._turn is None:
            self._turn = _AssistantTurn()
        return self._turn

    def _add_to_turn(self, block: Any, path: str, *, is_new: bool) -> None:
        kind = block.get("type") if isinstance(block, dict) else None
        match kind:
            case "thinking":
                if reasoning := self._reasoning(block, path, is_new=is_new):
                    self._begun().reasoning.append(reasoning)
            case "tool_use":
                if (call := self._tool_call(block, path, is_new=is_new)) is not None:
                    self._begun().calls.append(call)
            case "tool_result":
                if is_new:
                    raise invalid(path, "`tool_result` blocks can only be in `user` messages")
                self._append_result(block, path, is_new=False)
            case "compaction":
                summary = block.get("content")
                self._begun().texts.append(summary if isinstance(summary, str) else "")
            case str() if kind not in {"text", "image", "document"}:
                log_left_out("blocks in assistant messages", kind)
            case _:
                self._begun().texts.append(read_part(block, path, is_new=is_new, shows_images=False)["text"])

    def _reasoning(self, block: Block, path: str, *, is_new: bool) -> str:
        if text := string_field(block, "thinking", path, is_new=is_new):
            return text
        signature = block.get("signature")
        if not isinstance(signature, str):
            return ""
        try:
            text = reasoning_of(signature, self._restorable_bytes)
        except TooMuchReasoningError:
            say_once("the signatures of a request hold too much reasoning: what is above the limit is left out")
            return ""
        self._restorable_bytes -= len(text.encode())
        return text

    def _tool_call(self, block: Block, path: str, *, is_new: bool) -> Message | None:
        """None: an earlier call of no name."""
        call_id = call_id_of(string_field(block, "id", path, is_new=is_new))
        name = string_field(block, "name", path, is_new=is_new)
        if not name and not is_new:
            say_once("an earlier call that names no tool is left out")
            return None
        self._tool_names[call_id] = name
        function = {"name": name, "arguments": arguments_text(block.get("input"))}
        return {"id": call_id, "type": "function", "function": function}


def _blocks(content: Any, path: str) -> Iterator[tuple[Any, str]]:
    """Each with its place."""
    blocks = content if isinstance(content, list) else [] if content is None else [json_text(content)]
    return ((block, dots(path, index)) for index, block in enumerate(blocks))


def _as_error(content: Content) -> Content:
    if isinstance(content, list):
        return [_part("Error:"), *content]
    return content if content.lower().startswith(("error", "<tool_use_error")) else f"Error: {content}"


def _part(text: str) -> Message:
    return {"type": "text", "text": text}


def _parts(content: Content) -> list[Message]:
    if isinstance(content, str):
        return [_part(content)] if content else []
    return content
