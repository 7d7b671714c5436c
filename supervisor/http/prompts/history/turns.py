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


def new_messages(roles: Sequence[Any]) -> range:
    """The numbers of the messages that the client sends now: the last one that is not the assistant's, with notes of
    the system's behind it. What came before was refused when it was sent, or answered; an answer behind them repeats
    what a model wrote."""
    end = len(roles)
    if end == 0:
        return range(0)
    while end > 1 and roles[end - 1] in _ASSISTANT:
        end -= 1
    begin = end - 1
    while begin > 0 and roles[begin] in _SYSTEM:
        begin -= 1
    return range(end - 1 if roles[begin] in (*_SYSTEM, *_ASSISTANT) else begin, end)


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


def is_begun_answer(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the answer goes on from the last message: from words of the assistant's. Behind a call that has no result
    a new answer begins."""
    if not messages or messages[-1]["role"] != "assistant" or is_empty_answer(messages[-1]):
        return False
    if messages[-1].get("tool_calls"):
        say_once("a conversation ends with a call that has no result: a new answer begins behind it")
        return False
    return True


def is_empty_answer(message: Mapping[str, Any]) -> bool:
    if message["role"] != "assistant" or message.get("tool_calls") or message.get("reasoning_content"):
        return False
    content = message["content"]
    return not content if isinstance(content, str) else not any(part["text"] for part in content)
