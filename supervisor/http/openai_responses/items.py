"""Input items of the Responses API, as the messages that chat templates know. Pure; knows nothing of the answer.

What one turn of the model became in items (reasoning, message, calls) becomes one assistant message again, so that the
rendered prompt is what was generated and its prefix is found. Items that this server cannot offer are left out or said
in words: a conversation that began elsewhere goes on.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.openai_shared.images import read_image
from luce.supervisor.http.prompts.message_images import NO_PROJECTOR, image_part

log = logging.getLogger("luce.http.responses")

Message = dict[str, Any]
Item = Mapping[str, Any]

CUSTOM_INPUT = "input"
"""The one argument of the function that stands for a custom tool."""

PACKED = "luce-reasoning:"
_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
_INPUT_ROLES = frozenset({"user", "system", "developer"})
_said: set[str] = set()


def say_once(text: str) -> None:
    """A fallback and its reason, in the log once. Bounded: clients choose what they send."""
    if text not in _said and len(_said) < 256:
        _said.add(text)
        log.info("%s", text)


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


def messages_of(items: str | Sequence[object]) -> list[Message]:
    """Raises ApiError, naming the field."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    conversation = _Conversation()
    for index, item in enumerate(items):
        conversation.take(item, f"input[{index}]")
    return conversation.finish()


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

    def take(self, item: object, where: str) -> None:
        if not isinstance(item, dict):
            raise _invalid(where, "an item must be an object")
        kind = item.get("type", "message" if "role" in item else None)
        if not isinstance(kind, str):
            raise _invalid(f"{where}.type", "an item needs a type")
        take = _TAKERS.get(kind)
        if take is None:
            say_once(f"input items of type {kind[:64]!r} are left out: the model has no such tool here")
            return
        take(self, item, where)

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
        self._turn.calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})
        self._turn.ends_in_text = False

    def _end_turn(self) -> None:
        if not self._turn.is_empty:
            self._messages.append(self._turn.message())
        self._turn = _Turn()


def _take_message(conversation: _Conversation, item: Item, where: str) -> None:
    role = item.get("role")
    if role == "assistant":
        conversation.speak(_assistant_text(item.get("content"), f"{where}.content"))
    elif isinstance(role, str) and role in _INPUT_ROLES:
        conversation.add({"role": role, "content": _input_content(item.get("content"), f"{where}.content")})
    else:
        raise _invalid(f"{where}.role", "the role must be user, assistant, system or developer")


def _take_reasoning(conversation: _Conversation, item: Item, where: str) -> None:
    """Its own text if the client sent it, else what we packed, else its summary; a stranger's cipher is left out."""
    del where
    text = _joined(item.get("content"))
    if not text:
        unpacked = unpack_reasoning(item.get("encrypted_content"))
        text = _joined(item.get("summary"), "\n") if unpacked is None else unpacked
    conversation.reason(text)


def _take_function_call(conversation: _Conversation, item: Item, where: str) -> None:
    name = _text_field(item, "name", where)
    arguments = item.get("arguments")
    if not isinstance(arguments, str):
        arguments = _as_json({} if arguments is None else arguments)
    conversation.call(_text_field(item, "call_id", where), offered_name(item.get("namespace"), name), arguments or "{}")


def _take_custom_call(conversation: _Conversation, item: Item, where: str) -> None:
    name = _text_field(item, "name", where)
    given = item.get("input")
    if not isinstance(given, str):
        raise _invalid(f"{where}.input", "the input of a custom tool call must be a text")
    conversation.call(
        _text_field(item, "call_id", where), offered_name(item.get("namespace"), name), custom_arguments(given)
    )


def custom_arguments(given: str) -> str:
    return _as_json({CUSTOM_INPUT: given})


def _take_output(conversation: _Conversation, item: Item, where: str) -> None:
    call_id = _text_field(item, "call_id", where)
    output = _output_content(item.get("output"), f"{where}.output")
    conversation.add({"role": "tool", "tool_call_id": call_id, "content": output})


def _take_action(name: str, field: str) -> Callable[[_Conversation, Item, str], None]:
    """A call of one of OpenAI's own tools, as a call of a function that is named so."""

    def take(conversation: _Conversation, item: Item, where: str) -> None:
        del where
        call_id = item.get("call_id") or item.get("id")
        action = item.get(field)
        arguments = _as_json(action if isinstance(action, dict) else {field: action})
        conversation.call(call_id if isinstance(call_id, str) else "", name, arguments)

    return take


def _take_action_output(conversation: _Conversation, item: Item, where: str) -> None:
    del where
    call_id = item.get("call_id") or item.get("id")
    text = _output_text(item.get("output"))
    conversation.add({"role": "tool", "tool_call_id": call_id if isinstance(call_id, str) else "", "content": text})


def _take_mcp_call(conversation: _Conversation, item: Item, where: str) -> None:
    """A call that the other server made itself: the item has its result too."""
    name = _text_field(item, "name", where)
    call_id = item.get("id") if isinstance(item.get("id"), str) else ""
    arguments = item.get("arguments")
    conversation.call(call_id or "", name, arguments if isinstance(arguments, str) and arguments else "{}")
    output = item.get("output") if item.get("error") is None else item.get("error")
    conversation.add({"role": "tool", "tool_call_id": call_id or "", "content": _output_text(output)})


def _refuse_reference(conversation: _Conversation, item: Item, where: str) -> None:
    del conversation
    name = item.get("id")
    raise _invalid(
        f"{where}.id",
        f"item_reference {str(name)[:80]!r}: it is not kept any more, or never was. Send the item itself",
        "item_not_found",
    )


_TAKERS: Mapping[str, Callable[[_Conversation, Item, str], None]] = {
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
    "item_reference": _refuse_reference,
}


def _input_content(content: object, where: str) -> str | list[Message]:
    """One text as text, several as parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _invalid(where, "the content must be a text or a list of parts")
    parts = [_input_part(part, f"{where}[{index}]") for index, part in enumerate(content)]
    if len(parts) <= 1 and all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _input_part(part: object, where: str) -> Message:
    if not isinstance(part, dict) or part.get("type") != "input_image":
        return {"type": "text", "text": _part_text(part, where)}
    told = f"content of type 'input_image' is not supported: text only {NO_PROJECTOR}"
    lacking = _invalid(f"{where}.type", told, "unsupported_content")
    return image_part(read_image(part.get("image_url"), f"{where}.image_url", lacking))


def _part_text(part: object, where: str) -> str:
    if not isinstance(part, dict):
        raise _invalid(where, "a content part must be an object")
    kind = part.get("type")
    if isinstance(kind, str) and kind in _TEXT_PARTS:
        text = part.get("text")
    elif kind == "refusal":
        text = part.get("refusal")
    else:
        raise _invalid(
            f"{where}.type", f"content of type {str(kind)[:64]!r} is not supported: text only", "unsupported_content"
        )
    if not isinstance(text, str):
        raise _invalid(f"{where}.text", "the part's text is missing")
    return text


def _assistant_text(content: object, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise _invalid(where, "the content must be a text or a list of parts")
    return "".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(content))


def _joined(parts: object, between: str = "") -> str:
    if isinstance(parts, str):
        return parts
    if not isinstance(parts, list):
        return ""
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return between.join(text for text in texts if isinstance(text, str))


def _output_content(output: object, where: str) -> str | list[Message]:
    """The same, with images as such: a model that reads none is shown the words."""
    if not isinstance(output, list) or not any(_is_image(part) for part in output):
        return _output_text(output)
    return [_output_image(part, f"{where}[{index}]") for index, part in enumerate(output)]


def _is_image(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "input_image"


def _output_image(part: object, where: str) -> Message:
    if not _is_image(part):
        return {"type": "text", "text": _output_part(part)}
    assert isinstance(part, dict)
    return image_part(read_image(part.get("image_url"), f"{where}.image_url", _output_part(part)))


def _output_text(output: object) -> str:
    """What a tool answered. Images in it are said in words: the agent has them in its history for good, and a refusal
    would end the conversation."""
    if output is None or isinstance(output, str):
        return output or ""
    if not isinstance(output, list):
        return _as_json(output)
    return "\n".join(_output_part(part) for part in output)


def _output_part(part: object) -> str:
    if not isinstance(part, dict):
        return part if isinstance(part, str) else _as_json(part)
    text = part.get("text")
    if isinstance(text, str):
        return text
    kind = part.get("type")
    if isinstance(kind, str) and kind not in _TEXT_PARTS and "stdout" not in part:
        say_once(f"tool outputs of type {kind[:64]!r} are named in the prompt, not shown: the model reads text only")
        return f"[{kind[:64]}: cannot be shown to this model]"
    return _as_json(part)


def _text_field(item: Item, name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not value:
        raise _invalid(f"{where}.{name}", f"{name} is missing")
    return value


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _invalid(param: str, text: str, code: str = "invalid_value") -> ApiError:
    return ApiError(ErrorKind.INVALID, code, f"{param}: {text}", param=param)
