"""LiveConversations: which conversation in memory a request summarises, so that it can be answered from there.

To compact a conversation, some programs send its messages again behind another head: a system text of their own and no
tools. The head comes first in a prompt, so nothing of what is in memory is a prefix of it. Where it is asked for, the
conversation keeps its own head, and what the program says of the summary goes into the last message.

A summary is recognised by its messages, whole and in canonical form, of the same client; by the tools, of which it has
none; and by a word for what it is. Whatever is in doubt is no summary. Knows messages; no template, no ids, no engine.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.http.prompts.canonical_message import heard, said
from luce.supervisor.http.prompts.message_normalizer import UnreadableContentError, normalise_messages

_MAX_CONVERSATIONS = 64
_SYSTEM = frozenset({"system", "developer"})
_ROLE_CHARS = 400  # of a system text, within which it says what the model is
_SUMMARY = re.compile(r"summar|compact|condens|recap|hand-?off|continuation", re.IGNORECASE)

Message = Mapping[str, Any]


@dataclass(frozen=True)
class _Text:
    """A prompt's messages behind its head, each by what it says."""

    head: tuple[dict[str, Any], ...]
    body: tuple[dict[str, Any], ...]
    digests: tuple[bytes, ...]


@dataclass(frozen=True)
class _Live:
    prompt: ChatPrompt
    """Without its messages."""
    head: tuple[dict[str, Any], ...]
    digests: tuple[bytes, ...]


class LiveConversations:
    """The latest ones. Any thread may use it."""

    def __init__(self) -> None:
        self._latest: OrderedDict[tuple[str, bytes, bytes], _Live] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, client: str, prompt: ChatPrompt) -> None:
        """It is about to be answered, and will be in memory."""
        text = _read(prompt.messages)
        if text is None or not text.body:
            return
        key = client, text.digests[0], _digest(repr((text.head, prompt.tools)).encode("utf-8", "surrogatepass"))
        with self._lock:
            self._latest[key] = _Live(replace(prompt, messages=()), text.head, text.digests)
            self._latest.move_to_end(key)
            while len(self._latest) > _MAX_CONVERSATIONS:
                self._latest.popitem(last=False)

    def find(self, client: str, prompt: ChatPrompt) -> ChatPrompt | None:
        """The conversation that the prompt summarises, asked to do that; None: it is no summary of one that is known,
        or has its head already."""
        if prompt.tools or prompt.continues_last or prompt.grammar is not None or prompt.json_schema is not None:
            return None
        text = _read(prompt.messages)
        if text is None or not text.body or text.body[-1].get("role") != "user":
            return None
        told = [*(message["content"] for message in text.head), text.body[-1]["content"]]
        if not any(_SUMMARY.search(part) for part in (*(part[:_ROLE_CHARS] for part in told[:-1]), told[-1])):
            return None
        live = self._live_of(client, text)
        if live is None or (live.head == text.head and not live.prompt.tools):
            return None
        asked = {"role": "user", "content": "\n\n".join(told)}
        return replace(
            live.prompt,
            messages=(*live.head, *text.body[:-1], asked),
            tool_choice="none",
            json_schema=None,
            grammar=None,
            thinking=prompt.thinking,
            thinking_is_optional=prompt.thinking_is_optional,
            thinking_budget=prompt.thinking_budget,
            edits=(),
        )

    def _live_of(self, client: str, text: _Text) -> _Live | None:
        with self._lock:
            latest = list(reversed(self._latest.items()))
        begun = (live for key, live in latest if key[:2] == (client, text.digests[0]))
        return next((live for live in begun if _is_of(text, live)), None)


def _is_of(text: _Text, live: _Live) -> bool:
    """Whether all but the last message are the conversation's, up to where the summary is to end, and behind it no more
    than the answer to it and the results of its calls."""
    theirs, ours = text.digests[:-1], live.digests
    n_common = next(
        (n for n, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), min(len(theirs), len(ours))
    )
    roles = [message["role"] for message in text.body[:-1]]
    behind = roles[n_common:]
    if "assistant" not in roles[:n_common] or (behind and n_common < len(ours)):
        return False
    return not behind or (behind[0] == "assistant" and all(role == "tool" for role in behind[1:]))


def _read(messages: Sequence[Message]) -> _Text | None:
    try:
        shown = normalise_messages(messages)
    except UnreadableContentError:
        return None
    n_head = next((at for at, message in enumerate(shown) if message.get("role") not in _SYSTEM), len(shown))
    numbers: dict[str, int] = {}  # of calls, by the id that the client gives them
    n_calls = 0
    digests = []
    for message in shown[n_head:]:
        if message.get("role") == "assistant":
            meant = said(message)
            for call in message.get("tool_calls", ()):
                numbers[call["id"]] = n_calls
                n_calls += 1
        else:
            id_ = message.get("tool_call_id")
            meant = heard(message, None if id_ is None else numbers.get(id_, id_))
        digests.append(_digest(meant))
    return _Text(tuple(shown[:n_head]), tuple(shown[n_head:]), tuple(digests))


def _digest(text: bytes) -> bytes:
    return blake2b(text, digest_size=16).digest()
