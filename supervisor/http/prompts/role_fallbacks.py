"""RoleFallbacks: rendering with templates that do not take every role in every place.

Clients send several system messages, also in the middle of a conversation, and call some of them developer's. Templates
refuse that, or leave such messages out without a word. What is tried changes messages in their places only, so that
the text before them stays the same. Knows templates by what they do, not by name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from luce.supervisor.text import RenderedChat, TemplateError, TextModel

Message = dict[str, Any]
Rewrite = Callable[[Sequence[Message]], list[Message]]

logger = logging.getLogger("luce.http.answering")

_BEGIN_BYTES = 64


class RoleFallbacks:
    """Any thread may use it."""

    def __init__(self, model: TextModel) -> None:
        self._model = model
        self._first: dict[tuple[bool, ...], int] = {}  # the first way that works for messages of this kind

    def render(self, messages: Sequence[Message], **options: Any) -> RenderedChat:
        """Raises what TextModel.render raises, as it does for the messages as they are."""
        roles = [message.get("role") for message in messages]
        if "developer" in roles and "developer" not in self._model.template.source:
            messages = _developer_as_system(messages)
            roles = [message.get("role") for message in messages]
        kind = _kind(roles)
        if kind not in self._first:
            self._first[kind] = self._probe(kind)
        chat, _ = self._try(messages, self._first[kind], **options)
        return chat

    def _probe(self, kind: tuple[bool, ...]) -> int:
        """What works for a conversation that has gone on works for its prefix, and its prompt begins the same."""
        if kind == _PLAIN:
            return 0
        try:
            _, number = self._try(_conversation(kind), 0)
        except TemplateError:
            return 0
        if number > 0:
            logger.info("the template does not take all roles as they are: %s", _REWRITES[number][0])
        return number

    def _try(self, messages: Sequence[Message], first: int, **options: Any) -> tuple[RenderedChat, int]:
        error: TemplateError | None = None
        incomplete: tuple[RenderedChat, int] | None = None
        for number in range(first, len(_REWRITES)):
            try:
                chat = self._model.render(_REWRITES[number][1](messages), **options)
            except TemplateError as refusal:
                error = error or refusal
                continue
            if _shows_all(chat, messages):
                return chat, number
            incomplete = incomplete or (chat, number)
        if incomplete is not None:
            return incomplete
        assert error is not None
        raise error


def _kind(roles: Sequence[Any]) -> tuple[bool, ...]:
    n_leading = next((at for at, role in enumerate(roles) if role not in _SYSTEM), len(roles))
    return (
        n_leading > 0,
        n_leading > 1,
        not _SYSTEM.isdisjoint(roles[n_leading:]),
        "developer" in roles,
        ("user", "user") in set(pairwise(roles)),
    )


_PLAIN = (False,) * 5


def _conversation(kind: tuple[bool, ...]) -> list[Message]:
    """Messages of that kind, with an answer and another question."""
    leads, leads_again, interrupts, is_developer, asks_twice = kind
    lead = "developer" if is_developer else "system"
    roles = [lead] * (leads + leads_again) + ["user"] * (1 + asks_twice) + ["system"] * interrupts
    roles += ["assistant"] + ["user"] * (1 + asks_twice)
    return [{"role": role, "content": f"Probe number {number}."} for number, role in enumerate(roles)]


def _shows_all(chat: RenderedChat, messages: Sequence[Message]) -> bool:
    """Whether no system text has been left out."""
    texts = (message["content"].strip().encode() for message in messages if message.get("role") in _SYSTEM)
    return all(_has(chat.prompt_bytes, text) for text in texts)


def _has(prompt: bytes, text: bytes) -> bool:
    """To look for its begin is enough most times, and takes less than to look for a long text."""
    begin = prompt.find(text[:_BEGIN_BYTES])
    return begin >= 0 and (prompt.startswith(text, begin) or text in prompt)


_SYSTEM = frozenset({"system", "developer"})


def _as_they_are(messages: Sequence[Message]) -> list[Message]:
    return list(messages)


def _developer_as_system(messages: Sequence[Message]) -> list[Message]:
    return [{**message, "role": "system"} if message.get("role") == "developer" else message for message in messages]


def _one_at_the_beginning(messages: Sequence[Message]) -> list[Message]:
    """The system messages at the start are one."""
    messages = _developer_as_system(messages)
    n_leading = next((at for at, message in enumerate(messages) if message.get("role") != "system"), len(messages))
    if n_leading < 2:
        return list(messages)
    text = "\n\n".join(message["content"] for message in messages[:n_leading])
    return [{"role": "system", "content": text}, *messages[n_leading:]]


def _later_as_user(messages: Sequence[Message]) -> list[Message]:
    """Of those in the middle the user is said to be the author."""
    first, *others = _one_at_the_beginning(messages)
    return [first, *({**other, "role": "user"} if other.get("role") == "system" else other for other in others)]


def _all_as_user(messages: Sequence[Message]) -> list[Message]:
    messages = _developer_as_system(messages)
    return [{**message, "role": "user"} if message.get("role") == "system" else message for message in messages]


def _joined(messages: Sequence[Message]) -> list[Message]:
    """Neighbouring messages of the user are one."""
    joined: list[Message] = []
    for message in messages:
        if joined and joined[-1].get("role") == message.get("role") == "user":
            joined[-1] = {**joined[-1], "content": joined[-1]["content"] + "\n\n" + message["content"]}
        else:
            joined.append(message)
    return joined


_REWRITES: Sequence[tuple[str, Rewrite]] = (
    ("as they are", _as_they_are),
    ("developer messages become system messages", _developer_as_system),
    ("system messages at the start become one", _one_at_the_beginning),
    ("system messages in the middle become the user's", _later_as_user),
    ("and neighbouring messages of the user become one", lambda messages: _joined(_later_as_user(messages))),
    ("system messages become the user's", lambda messages: _joined(_all_as_user(messages))),
)
