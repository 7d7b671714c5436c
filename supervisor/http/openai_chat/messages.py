"""A chat completion's `messages`: checked one by one, and brought into the shape of ChatPrompt.messages.

Lenient where real clients are: content that is null, arguments as an object, the legacy function role. What is neither
text nor an image is refused, and so are images of the assistant's or the system's. Must not know the rest of the body.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from luce.supervisor.http.openai_shared.fields import expect, refusal
from luce.supervisor.http.openai_shared.images import read_image
from luce.supervisor.http.prompts.conversation_memo import SentMessage
from luce.supervisor.http.prompts.message_images import NO_PROJECTOR, image_part
from luce.supervisor.http.transport.known_bodies import KnownMessage

IMAGE_ROLES = ("user", "tool", "function")
IMAGE_PARTS = ("image_url", "input_image")
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
THOUGHT_PARTS = ("thinking", "reasoning", "redacted_thinking")
PART_NAMES = {
    "image_url": "image",
    "input_image": "image",
    "image": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "video_url": "video",
    "file": "file",
    "input_file": "file",
}


def read_messages(value: Any) -> list[dict[str, Any]]:
    expect(value, list, "messages", "an array of objects")
    if not value:
        raise refusal("messages", "Invalid 'messages': empty array. Expected at least one message.", "empty_array")
    return [_read_known(message, number) for number, message in enumerate(value)]


def _read_known(message: Any, number: int) -> dict[str, Any]:
    """One that has come before is what was made of it then."""
    if not isinstance(message, KnownMessage):
        return _read_message(message, f"messages[{number}]", number)
    if message.made is None:
        message.made = SentMessage(_read_message(message, f"messages[{number}]", number))
    made: SentMessage = message.made
    return made


def _read_message(message: Any, param: str, number: int) -> dict[str, Any]:
    expect(message, dict, param, "an object")
    role = message.get("role")
    if role is None:
        raise refusal(f"{param}.role", f"Missing required parameter: '{param}.role'.", "missing_required_parameter")
    if role not in ROLES:
        shown = f"'{role:.40}'" if isinstance(role, str) else "a value that is no string"
        expected = ", ".join(f"'{name}'" for name in ROLES)
        raise refusal(f"{param}.role", f"Invalid value for '{param}.role': {shown}. Supported values are: {expected}.")
    if role == "assistant":
        return _read_assistant(message, param, number)
    if "content" not in message:
        name = f"{param}.content"
        raise refusal(name, f"Missing required parameter: '{name}'.", "missing_required_parameter")
    content = _read_content(message["content"], f"{param}.content", has_images=role in IMAGE_ROLES)
    if role == "function":
        name = _optional_text(message, "name", param)
        return {"role": "tool", "tool_call_id": _legacy_id(name), "name": name, "content": content}
    read = {"role": role, "content": content}
    if role == "tool":
        read["tool_call_id"] = _optional_text(message, "tool_call_id", param)
    if name := _optional_text(message, "name", param):
        read["name"] = name
    return read


def _read_assistant(message: Mapping[str, Any], param: str, number: int) -> dict[str, Any]:
    calls = _read_calls(message.get("tool_calls"), f"{param}.tool_calls", number)
    if not calls and (legacy := message.get("function_call")) is not None:
        function = _read_function(legacy, f"{param}.function_call")
        calls = [{"id": _legacy_id(function["name"]), "type": "function", "function": function}]
    reasoning = _optional_text(message, "reasoning_content", param) or _optional_text(message, "reasoning", param)
    content, thoughts = _without_thoughts(message.get("content"))
    reasoning = reasoning or thoughts
    if content is None and (refused := _optional_text(message, "refusal", param)):
        content = refused
    if content is None and not calls and not reasoning and "content" not in message:
        name = f"{param}.content"
        raise refusal(name, f"'{param}' needs 'content' or 'tool_calls'.", "missing_required_parameter")
    read: dict[str, Any] = {"role": "assistant", "content": _read_content(content, f"{param}.content")}
    if reasoning:
        read["reasoning_content"] = reasoning
    if calls:
        read["tool_calls"] = calls
    return read


def _without_thoughts(content: Any) -> tuple[Any, str]:
    """The content without the parts in which some clients keep an answer's reasoning, and their text."""
    if not isinstance(content, list):
        return content, ""
    texts: list[str] = []
    rest = []
    for part in content:
        if isinstance(part, dict) and part.get("type") in THOUGHT_PARTS:
            text = part.get("thinking", part.get("text"))
            texts += [text] if isinstance(text, str) else []
        else:
            rest.append(part)
    return rest, "\n".join(texts)


def _read_calls(value: Any, param: str, number: int) -> list[dict[str, Any]]:
    if value is None:
        return []
    expect(value, list, param, "an array")
    calls = []
    for index, call in enumerate(value):
        name = f"{param}[{index}]"
        expect(call, dict, name, "an object")
        function = call.get("function")
        if isinstance(custom := call.get("custom"), dict):  # a tool whose argument is free text
            function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
        identity = _optional_text(call, "id", name) or f"call_{number}_{index}"
        calls.append({"id": identity, "type": "function", "function": _read_function(function, f"{name}.function")})
    return calls


def _read_function(value: Any, param: str) -> dict[str, Any]:
    expect(value, dict, param, "an object")
    name, arguments = value.get("name"), value.get("arguments")
    if not isinstance(name, str) or not name:
        raise refusal(f"{param}.name", f"Invalid '{param}.name': expected a tool's name.", "invalid_type")
    if arguments is not None and not isinstance(arguments, (str, dict)):
        name = f"{param}.arguments"
        raise refusal(name, f"Invalid type for '{name}': expected JSON as a string.", "invalid_type")
    return {"name": name, "arguments": _readable(arguments)}


def _readable(arguments: str | dict[str, Any] | None) -> str:
    """JSON text of an object, whatever came: templates take nothing else. A call that was cut off comes back from
    clients as it was, and must not make every further turn impossible."""
    if isinstance(arguments, dict):
        return json.dumps(arguments, ensure_ascii=False)
    if arguments is None or not arguments.strip():
        return "{}"
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = arguments
    return arguments if isinstance(value, dict) else json.dumps({"arguments": value}, ensure_ascii=False)


def _read_content(value: Any, param: str, *, has_images: bool = False) -> str | list[dict[str, Any]]:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    expect(value, list, param, "a string or an array of parts")
    return [_read_part(part, f"{param}[{index}]", has_images=has_images) for index, part in enumerate(value)]


def _read_part(part: Any, param: str, *, has_images: bool) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    expect(part, dict, param, "an object")
    kind = part.get("type")
    if kind is None and "text" in part:
        kind = "text"
    if not isinstance(kind, str):
        raise refusal(f"{param}.type", f"Missing required parameter: '{param}.type'.", "missing_required_parameter")
    if (key := TEXT_PARTS.get(kind)) is None:
        what = PART_NAMES.get(kind, f"'{kind:.40}'")
        told = f"{what} input is not supported by this model: '{param}' must be text."
        if not has_images or kind not in IMAGE_PARTS:
            raise refusal(param, told, "unsupported_content")
        lacking = refusal(param, f"{told} {NO_PROJECTOR}", "unsupported_content")
        return image_part(read_image(part.get("image_url"), f"{param}.image_url", lacking))
    text = part.get(key)
    expect(text, str, f"{param}.{key}", "a string")
    return {"type": "text", "text": text}


def _optional_text(values: Mapping[str, Any], key: str, param: str) -> str:
    value = values.get(key)
    if value is None:
        return ""
    return expect(value, str, f"{param}.{key}", "a string")


def _legacy_id(name: str) -> str:
    """Legacy calls have no ids: a result is told by its function's name."""
    return f"call_{name}"
