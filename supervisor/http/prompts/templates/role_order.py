"""Role order: system messages and turns in the places that templates take them in. Pure: each function makes messages
of normalised messages, and gives those back that it does not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from luce.supervisor.http.prompts.templates.traits import TemplateTraits

Message = Mapping[str, Any]

SYSTEM_ROLES = frozenset({"system", "developer"})
_TEXTS = ("reasoning_content", "content")


def place_system_messages(messages: Sequence[Message], traits: TemplateTraits) -> list[Message]:
    """System messages in roles that are shown where they stand."""
    leading = list(takewhile(lambda message: message.get("role") in SYSTEM_ROLES, messages))
    head = [_in_role_of(message, traits.leading_roles) for message in leading]
    if len(head) > 1 and traits.leading_roles and not traits.takes_several_leading:
        head = [_joined(head)]
    begins_with_system = bool(head) and head[0]["role"] in SYSTEM_ROLES
    taken = traits.roles_behind_system if begins_with_system else traits.roles_without_system
    return head + [_in_role_of(message, taken) for message in messages[len(leading) :]]


def _in_role_of(message: Message, taken: frozenset[str]) -> Message:
    role = message.get("role")
    if role not in SYSTEM_ROLES or role in taken:
        return message
    return {**message, "role": "system" if "system" in taken else "user"}


def opened_by_user(messages: Sequence[Message]) -> list[Message]:
    """With an empty message of the user's where the conversation does not begin with one."""
    n_leading = next((at for at, each in enumerate(messages) if each.get("role") not in SYSTEM_ROLES), len(messages))
    if n_leading < len(messages) and messages[n_leading].get("role") == "user":
        return list(messages)
    return [*messages[:n_leading], _empty("user"), *messages[n_leading:]]


def alternating(messages: Sequence[Message]) -> list[Message]:
    """The texts of a conversation that the user opens, so that user and assistant take turns; calls do not count.
    Neighbours of one role become one message, also a text and a call; between those that calls stand between comes an
    empty one of the other role."""
    shown: list[Message] = []
    latest = ""
    for message in messages:
        role = message["role"]
        calls = message.get("tool_calls")
        if role in SYSTEM_ROLES or role == "tool":
            shown.append(message)
        elif latest == role and shown[-1]["role"] == role and not shown[-1].get("tool_calls"):
            shown[-1] = _joined([shown[-1], message])
            latest = "user" if calls else latest
        elif calls:
            shown.append(message)
        else:
            shown += [message] if role != latest else [_empty("assistant" if role == "user" else "user"), message]
            latest = role
    return shown


def without_marks(messages: Sequence[Message]) -> list[Message]:
    """Answers without the beginnings of special tokens: gpt-oss' template refuses a text that a model has written with
    its marks in the wrong places."""
    return [
        {**message, **{key: message[key].replace("<|", "< |") for key in _TEXTS if message.get(key)}}
        if message["role"] == "assistant"
        else message
        for message in messages
    ]


def _empty(role: str) -> Message:
    return {"role": role, "content": ""}


def _joined(messages: Sequence[Message]) -> Message:
    """As one message of the first one's role, with the last one's calls. An empty text adds nothing."""
    joined = {**messages[-1], **messages[0]}
    for key in _TEXTS:
        texts = [text for message in messages if (text := message.get(key))]
        if texts:
            joined[key] = "\n\n".join(texts)
    return joined
