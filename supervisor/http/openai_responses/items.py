"""Input items of the Responses API, as the messages that chat templates know. Pure; knows nothing of the answer.

What one turn of the model became in items (reasoning, message, calls) becomes one assistant message again, so that the
rendered prompt is what was generated and its prefix is found. Items that this server cannot offer are left out or said
in words: a conversation that began elsewhere goes on.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.prompts.history.arguments import arguments_text
from luce.supervisor.http.prompts.history.parts import Content, joined, json_text, read_content, result_content
from luce.supervisor.http.prompts.history.reasoning import reasoning_text
from luce.supervisor.http.prompts.history.turns import drop_empty_end, new_messages, role_of
from luce.supervisor.http.prompts.message_images import image_of
from luce.supervisor.http.prompts.notes import say_once

Message = dict[str, Any]
Item = Mapping[str, Any]

CUSTOM_INPUT = "input"
"""The one argument of the function that stands for a custom tool."""

PACKED = "luce-reasoning:"
_ROLES = ("user", "assistant", "system", "developer")


@dataclass(frozen=True, slots=True)
class _Place:
    path: str
    is_new: bool
    """The client sends it now: what is wrong with it is refused."""


def pack_reasoning(text: str) -> str:
    """Reasoning for `encrypted_content`, which clients send back where they leave the text itself out (Codex does).

    Encoded, not encrypted: it is the client's own conversation with a server that keeps nothing.
    """
    return PACKED + base64.b64encode(text.encode()).decode()


def unpack_reasoning(packed: object) -> str | None:
    """None: not ours."""
    if not isinstance(packed, str) or not packed.startswith(PACKED):
        return None
    try:
        return base64.b64decode(packed[len(PACKED) :].encode(), validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def offered_name(namespace: object, name: str) -> str:
    """A tool's name in the prompt. It depends on nothing but the item itself, so that a call in the history always
    reads as it was generated."""
    if not isinstance(namespace, str) or not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def messages_of(items: str | Sequence[object], earlier: Sequence[object] = ()) -> list[Message]:
    """`earlier`: the conversation before these items. Raises ApiError, naming the field."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    conversation = _Conversation()
    for item in earlier:
        conversation.take(item, _Place("input", is_new=False))
    new = new_messages(list(map(_role_of, items)))
    for index, item in enumerate(items):
        conversation.take(item, _Place(f"input[{index}]", is_new=index in new))
    messages = conversation.finish()
    drop_empty_end(messages)
    return messages


def _role_of(item: object) -> object:
    """Calls, reasoning and what is referred to came with an answer."""
    if not isinstance(item, dict):
        return None
    kind = item.get("type")
    is_answer = isinstance(kind, str) and (kind in {"reasoning", "item_reference"} or kind.endswith("_call"))
    return "assistant" if is_answer else item.get("role")


class _Turn:
    """An assistant's message being put together again."""

    def __init__(self) -> None:
        self.reasoning: list[str] = []
        self.content: list[str] = []
        self.calls: list[Message] = []
        self.ends_in_text = False

    @property
    def is_empty(self) -> bool:
        return not (self.reasoning or self.content or self.calls)

    def message(self) -> Message:
        message: Message = {"role": "assistant", "content": "".join(self.content)}
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


class _Conversation:
    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._turn = _Turn()

    def finish(self) -> list[Message]:
        self._end_turn()
        return self._messages

    def take(self, item: object, place: _Place) -> None:
        if not isinstance(item, dict):
            if place.is_new:
                raise _invalid(place.path, "an item must be an object")
            item = {"role": "user", "content": item}
        kind = item.get("type")
        if kind is None and ("role" in item or ("content" in item and not place.is_new)):
            kind = "message"
        if place.is_new and not isinstance(kind, str):
            raise _invalid(f"{place.path}.type", "an item needs a type")
        take = _TAKERS.get(str(kind))
        if take is None:
            say_once(f"input items of type {str(kind)[:64]!r} are left out: the model has no such tool here")
            return
        take(self, item, place)

    def add(self, message: Message) -> None:
        """A message of anybody else: the assistant's turn is over."""
        self._end_turn()
        self._messages.append(message)

    def reason(self, text: str) -> None:
        if self._turn.content or self._turn.calls:
            self._end_turn()  # a turn reasons first: this is the next one
        if text:
            self._turn.reasoning.append(text)

    def speak(self, text: str) -> None:
        if self._turn.ends_in_text:
            self._end_turn()
        self._turn.content.append(text)
        self._turn.ends_in_text = True

    def call(self, call_id: str, name: str, arguments: str) -> None:
        if not name:
            say_once("an earlier call that names no tool is left out")
            return
        self._turn.calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})
        self._turn.ends_in_text = False

    def _end_turn(self) -> None:
        if not self._turn.is_empty:
            self._messages.append(self._turn.message())
        self._turn = _Turn()


def _take_message(conversation: _Conversation, item: Item, place: _Place) -> None:
    where = f"{place.path}.content"
    if place.is_new and item.get("role") not in _ROLES:
        raise _invalid(f"{place.path}.role", "the role must be user, assistant, system or developer")
    role = role_of(item, _ROLES)
    if role == "assistant":
        conversation.speak(_assistant_text(item.get("content"), where, is_new=place.is_new))
    else:
        conversation.add({"role": role, "content": _content(item.get("content"), where, is_new=place.is_new)})


def _take_reasoning(conversation: _Conversation, item: Item, place: _Place) -> None:
    """Its own text if the client sent it, else what we packed, else its summary; a stranger's cipher is left out."""
    del place
    text = reasoning_text(item.get("content"))
    if not text:
        unpacked = unpack_reasoning(item.get("encrypted_content"))
        text = _summary(item.get("summary")) if unpacked is None else unpacked
    conversation.reason(text)


def _summary(parts: object) -> str:
    return "\n".join(filter(None, map(reasoning_text, parts))) if isinstance(parts, list) else reasoning_text(parts)


def _take_function_call(conversation: _Conversation, item: Item, place: _Place) -> None:
    name = _text_field(item, "name", place)
    arguments = arguments_text(item.get("arguments")) or "{}"
    conversation.call(_text_field(item, "call_id", place), offered_name(item.get("namespace"), name), arguments)


def _take_custom_call(conversation: _Conversation, item: Item, place: _Place) -> None:
    name = _text_field(item, "name", place)
    given = item.get("input")
    if place.is_new and not isinstance(given, str):
        raise _invalid(f"{place.path}.input", "the input of a custom tool call must be a text")
    given = given if isinstance(given, str) else json_text(given)
    conversation.call(
        _text_field(item, "call_id", place), offered_name(item.get("namespace"), name), custom_arguments(given)
    )


def custom_arguments(given: str) -> str:
    return json_text({CUSTOM_INPUT: given})


def _take_output(conversation: _Conversation, item: Item, place: _Place) -> None:
    call_id = _text_field(item, "call_id", place)
    output = result_content(item.get("output"), f"{place.path}.output")
    conversation.add({"role": "tool", "tool_call_id": call_id, "content": output})


def _take_action(name: str, field: str) -> Callable[[_Conversation, Item, _Place], None]:
    """A call of one of OpenAI's own tools, as a call of a function that is named so."""

    def take(conversation: _Conversation, item: Item, place: _Place) -> None:
        del place
        action = item.get(field)
        conversation.call(_action_id(item), name, json_text(action if isinstance(action, dict) else {field: action}))

    return take


def _take_action_output(conversation: _Conversation, item: Item, place: _Place) -> None:
    output = result_content(item.get("output"), f"{place.path}.output")
    conversation.add({"role": "tool", "tool_call_id": _action_id(item), "content": output})


def _action_id(item: Item) -> str:
    identity = item.get("call_id") or item.get("id")
    return identity if isinstance(identity, str) else ""


def _take_mcp_call(conversation: _Conversation, item: Item, place: _Place) -> None:
    """A call that the other server made itself: the item has its result too."""
    name = _text_field(item, "name", place)
    call_id = item["id"] if isinstance(item.get("id"), str) else ""
    conversation.call(call_id, name, arguments_text(item.get("arguments")) or "{}")
    output = item.get("output") if item.get("error") is None else item.get("error")
    content = result_content(output, f"{place.path}.output")
    conversation.add({"role": "tool", "tool_call_id": call_id, "content": content})


def _take_reference(conversation: _Conversation, item: Item, place: _Place) -> None:
    """What it names is not kept: what is would stand in its place."""
    del conversation
    if place.is_new:
        name = str(item.get("id"))[:80]
        why = "it is not kept any more, or never was. Send the item itself"
        raise _invalid(f"{place.path}.id", f"item_reference {name!r}: {why}", "item_not_found")
    say_once("references to earlier items that are not kept any more are left out")


_TAKERS: Mapping[str, Callable[[_Conversation, Item, _Place], None]] = {
    "message": _take_message,
    "reasoning": _take_reasoning,
    "function_call": _take_function_call,
    "function_call_output": _take_output,
    "custom_tool_call": _take_custom_call,
    "custom_tool_call_output": _take_output,
    "local_shell_call": _take_action("local_shell", "action"),
    "local_shell_call_output": _take_action_output,
    "shell_call": _take_action("shell", "action"),
    "shell_call_output": _take_action_output,
    "apply_patch_call": _take_action("apply_patch", "operation"),
    "apply_patch_call_output": _take_action_output,
    "computer_call": _take_action("computer", "action"),
    "computer_call_output": _take_action_output,
    "mcp_call": _take_mcp_call,
    "item_reference": _take_reference,
}


def _content(content: object, where: str, *, is_new: bool) -> Content:
    """One text as text, several as parts."""
    read = read_content(content, where, is_new=is_new, shows_images=True)
    if isinstance(read, str) or len(read) > 1 or any(map(image_of, read)):
        return read
    return joined(read)


def _assistant_text(content: object, where: str, *, is_new: bool) -> str:
    read = read_content(content, where, is_new=is_new)
    return read if isinstance(read, str) else "".join(part["text"] for part in read)


def _text_field(item: Item, name: str, place: _Place) -> str:
    """Empty where an earlier item has none."""
    value = item.get(name)
    if isinstance(value, str) and value:
        return value
    if place.is_new:
        raise _invalid(f"{place.path}.{name}", f"{name} is missing")
    return "" if value is None else json_text(value)


def _invalid(param: str, text: str, code: str = "invalid_value") -> ApiError:
    return ApiError(ErrorKind.INVALID, code, f"{param}: {text}", param=param)
