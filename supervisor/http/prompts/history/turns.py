"""Which messages are history, who said them, and whether an answer has begun. Pure."""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence, Sequence
from typing import Any

from luce.supervisor.http.prompts.notes import say_once

_SYSTEM = ("system", "developer")
_ASSISTANT = ("assistant",)
_OTHER_NAMES = {
    "human": "user",
    "model": "assistant",
    "ai": "assistant",
    "bot": "assistant",
    "function": "tool",
    "ipython": "tool",
}


def first_new(roles: Sequence[Any]) -> int:
    """The number of the first message that the client sends now: the last one, with an answer behind it that is begun,
    or with notes of the system's. What came before was refused when it was sent, or answered."""
    for others in (_SYSTEM, _ASSISTANT):
        last = len(roles) - 1
        while last > 0 and roles[last] in others:
            last -= 1
        if last >= 0 and roles[last] not in (*_SYSTEM, *_ASSISTANT):
            return last
    return len(roles) - 1


def role_of(message: Mapping[str, Any], known: Sequence[str]) -> str:
    """Of an earlier message: its own, or the one that is meant by another name."""
    role = message.get("role")
    if isinstance(role, str) and role in known:
        return role
    if isinstance(role, str) and (meant := _OTHER_NAMES.get(role.lower(), role.lower())) in known:
        return meant
    say_once("an earlier message has no role that is known: it is read as the user's, a call's or a result's")
    if message.get("tool_calls") or message.get("function_call"):
        return "assistant"
    return "tool" if "tool_call_id" in message and "tool" in known else "user"


def drop_empty_end(messages: MutableSequence[dict[str, Any]]) -> None:
    """The last message goes where it is the assistant's and says nothing: no answer has begun."""
    if len(messages) > 1 and is_empty_answer(messages[-1]):
        messages.pop()


def is_empty_answer(message: Mapping[str, Any]) -> bool:
    if message["role"] != "assistant" or message.get("tool_calls") or message.get("reasoning_content"):
        return False
    content = message["content"]
    return not content if isinstance(content, str) else not any(part["text"] for part in content)
