"""A chat completion's `messages`: checked one by one, and brought into the shape of ChatPrompt.messages.

Lenient where real clients are: content that is null, arguments as an object, the legacy function role. Only what the
client sends now is refused; prompts/history says what becomes of the rest. Must not know the rest of the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luce.supervisor.http.openai_shared.fields import expect, refusal
from luce.supervisor.http.prompts.history.arguments import arguments_text
from luce.supervisor.http.prompts.history.parts import Content, json_text, read_content, result_content
from luce.supervisor.http.prompts.history.reasoning import reasoning_in, without_thoughts
from luce.supervisor.http.prompts.history.turns import drop_empty_end, new_messages, role_of
from luce.supervisor.http.prompts.notes import say_once

ROLES = ("system", "developer", "user", "assistant", "tool", "function")

Message = dict[str, Any]


def read_messages(value: Any) -> list[Message]:
    """Raises ApiError."""
    expect(value, list, "messages", "an array of objects")
    if not value:
        raise refusal("messages", "Invalid 'messages': empty array. Expected at least one message.", "empty_array")
    new = new_messages([message.get("role") if isinstance(message, dict) else None for message in value])
    read = [_read_message(message, number, is_new=number in new) for number, message in enumerate(value)]
    drop_empty_end(read)
    return read


def _read_message(message: Any, number: int, *, is_new: bool) -> Message:
    param = f"messages[{number}]"
    if not isinstance(message, dict):
        if is_new:
            expect(message, dict, param, "an object")
        return {"role": "user", "content": read_content(message, param, is_new=False)}
    if is_new:
        _check_role(message, param)
    role = role_of(message, ROLES)
    if role == "assistant":
        return _read_assistant(message, number, is_new=is_new)
    if is_new and "content" not in message and role not in {"tool", "function"}:
        name = f"{param}.content"
        raise refusal(name, f"Missing required parameter: '{name}'.", "missing_required_parameter")
    name = _text(message, "name", param, is_new=is_new)
    if role in {"tool", "function"}:
        identity = _legacy_id(name) if role == "function" else _text(message, "tool_call_id", param, is_new=is_new)
        content = result_content(message.get("content"), f"{param}.content")
        read: Message = {"role": "tool", "tool_call_id": identity, "content": content}
    else:
        shows_images = role == "user"
        content = read_content(message.get("content"), f"{param}.content", is_new=is_new, shows_images=shows_images)
        read = {"role": role, "content": content}
    if name:
        read["name"] = name
    return read


def _check_role(message: Mapping[str, Any], param: str) -> None:
    role = message.get("role")
    if role is None:
        raise refusal(f"{param}.role", f"Missing required parameter: '{param}.role'.", "missing_required_parameter")
    if role not in ROLES:
        shown = f"'{role:.40}'" if isinstance(role, str) else "a value that is no string"
        expected = ", ".join(f"'{name}'" for name in ROLES)
        raise refusal(f"{param}.role", f"Invalid value for '{param}.role': {shown}. Supported values are: {expected}.")


def _read_assistant(message: Mapping[str, Any], number: int, *, is_new: bool) -> Message:
    param = f"messages[{number}]"
    calls = _read_calls(message.get("tool_calls"), number, is_new=is_new)
    if not calls and (legacy := message.get("function_call")) is not None:
        function = _read_function(legacy, f"{param}.function_call", is_new=is_new)
        calls = [] if function is None else [_call(_legacy_id(function["name"]), function)]
    content, thoughts = without_thoughts(message.get("content"))
    read: Message = {"role": "assistant", "content": _answer_content(message, content, param, is_new=is_new)}
    if reasoning := reasoning_in(message) or thoughts:
        read["reasoning_content"] = reasoning
    if calls:
        read["tool_calls"] = calls
    return read


def _answer_content(message: Mapping[str, Any], content: Any, param: str, *, is_new: bool) -> Content:
    if content is None and (refused := _text(message, "refusal", param, is_new=is_new)):
        content = refused
    return read_content(content, f"{param}.content", is_new=is_new)


def _read_calls(value: Any, number: int, *, is_new: bool) -> list[Message]:
    param = f"messages[{number}].tool_calls"
    if value is None:
        return []
    if is_new:
        expect(value, list, param, "an array")
    calls = []
    for index, call in enumerate(value if isinstance(value, list) else [value]):
        name = f"{param}[{index}]"
        if not isinstance(call, dict):
            if is_new:
                expect(call, dict, name, "an object")
            say_once("an earlier call that is no object is left out")
            continue
        function = call.get("function")
        if isinstance(custom := call.get("custom"), dict):  # a tool whose argument is free text
            function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
        if (read := _read_function(function, f"{name}.function", is_new=is_new)) is not None:
            calls.append(_call(_text(call, "id", name, is_new=is_new) or f"call_{number}_{index}", read))
    return calls


def _read_function(value: Any, param: str, *, is_new: bool) -> Message | None:
    """None: an earlier call of no name."""
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or not name:
        if is_new:
            expect(value, dict, param, "an object")
            raise refusal(f"{param}.name", f"Invalid '{param}.name': expected a tool's name.", "invalid_type")
        say_once("an earlier call that names no tool is left out")
        return None
    return {"name": name, "arguments": arguments_text(value.get("arguments"))}


def _call(identity: str, function: Message) -> Message:
    return {"id": identity, "type": "function", "function": function}


def _text(values: Mapping[str, Any], key: str, param: str, *, is_new: bool) -> str:
    value = values.get(key)
    if value is None:
        return ""
    if is_new:
        expect(value, str, f"{param}.{key}", "a string")
    return value if isinstance(value, str) else json_text(value)


def _legacy_id(name: str) -> str:
    """Legacy calls have no ids: a result is told by its function's name."""
    return f"call_{name}"
