"""AnswerSpellings: answers as the messages that they were, so that a client's own spelling of one is rendered as it was
given.

Clients send an answer back in other bytes than they got, and often without its reasoning. The template would make
another prompt of that, which shares nothing with the text in memory from there on. So a message that means the same as
an answer that this client got in the same conversation is replaced by that answer, whole: the template sees what it
would see of a client that sends back what it got, and keeps or strips the reasoning by its own rules.

An answer that nobody here gave (another server did, or an earlier one) is taken as the client spells it first, and
stays so: what was read of it is in memory.

The same conversation is the same messages before, in their canonical form, for the same client: no other client's
answer is ever put in. Knows messages; no template, no ids and no engine.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from luce.supervisor.http.prompts.canonical_message import Defaults, defaults_of, heard, reasoning_of, said
from luce.supervisor.http.prompts.message_normalizer import CLEARED_REASONING, content_texts, normalise_messages

_ENTRY_BYTES = 1500  # beside an answer's texts, about
_MAX_AT_ONE_PLACE = 16

Message = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class GivenAnswer:
    """One that a client was given, or that it brought along."""

    message: Message
    """As a client would send it back that changes nothing."""
    said: bytes
    reasoning: str
    also_said: bytes = b""
    """The same with nothing between the parts of its text."""
    is_ours: bool = True

    @property
    def n_bytes(self) -> int:
        texts = [self.message["content"], self.message.get("reasoning_content") or ""]
        texts += [call["function"]["arguments"] for call in self.message.get("tool_calls") or ()]
        return len(self.said) + len(self.also_said) + sum(map(len, texts)) + _ENTRY_BYTES


@dataclass(frozen=True)
class SpelledConversation:
    messages: Sequence[dict[str, Any]]
    """Normalised; answers that are known as they were given."""
    answers: Sequence[tuple[GivenAnswer | None, bool]]
    """For each of the assistant's messages: the answer of ours that it is, and whether the client spelled it
    otherwise."""
    place: bytes
    """That of an answer to it."""


class AnswerSpellings:
    """The latest used answers, up to so many bytes. Any thread may use it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._given: OrderedDict[bytes, list[GivenAnswer]] = OrderedDict()
        self._lock = threading.Lock()
        self.n_bytes = 0

    def read(
        self,
        messages: Sequence[Message],
        client: str = "",
        *,
        keeps_last: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> SpelledConversation:
        """`keeps_last`: the last message stays as it is, since the answer goes on from it. `tools`: whose arguments may
        have been filled in. Raises UnreadableContentError."""
        walk = _Walk(client)
        defaults = defaults_of(tools)
        for number, raw in enumerate(messages):
            for message in normalise_messages([raw]):  # none, of a message that nobody is to see
                if message.get("role") != "assistant":
                    walk.hear(message)
                    continue
                is_kept = keeps_last and number == len(messages) - 1
                answer = None
                if not is_kept:
                    answer = self._find(walk.place, message, raw, defaults) or self._meet(walk.place, message, raw)
                walk.say(message, answer)
        return SpelledConversation(walk.messages, walk.answers, walk.place)

    def keep(self, place: bytes, message: Message) -> GivenAnswer:
        """An answer that was given."""
        return self._keep(place, GivenAnswer(message, said(message), reasoning_of(message)))

    def _meet(self, place: bytes, message: Message, raw: Message) -> GivenAnswer | None:
        """An answer that the client has from elsewhere, for the first time."""
        if self._max_bytes == 0 or CLEARED_REASONING in message:
            return None
        own, *others = (said(message, content) for content in _contents(message, raw))
        return self._keep(place, GivenAnswer(dict(message), own, reasoning_of(message), b"".join(others), False))

    def _keep(self, place: bytes, answer: GivenAnswer) -> GivenAnswer:
        with self._lock:
            here = self._given.setdefault(place, [])
            leaving = [other for other in here if other.message == answer.message]
            if not leaving and len(here) >= _MAX_AT_ONE_PLACE:
                leaving = here[:1]
            for other in leaving:
                here.remove(other)
                self.n_bytes -= other.n_bytes
            here.append(answer)
            self.n_bytes += answer.n_bytes
            self._given.move_to_end(place)
            while self.n_bytes > self._max_bytes and self._given:
                _, oldest = self._given.popitem(last=False)
                self.n_bytes -= sum(other.n_bytes for other in oldest)
        return answer

    def _find(self, place: bytes, message: Message, raw: Message, defaults: Defaults) -> GivenAnswer | None:
        """The latest answer at the place that says the same, and reasons the same if the message reasons at all."""
        with self._lock:
            here = list(self._given.get(place, ()))
            if here:
                self._given.move_to_end(place)
        if not here:
            return None
        reasoning = reasoning_of(message)
        here = [answer for answer in reversed(here) if reasoning in ("", answer.reasoning)]
        wanted = [said(message, content) for content in _contents(message, raw)]
        for answer in here:
            if answer.said in wanted or answer.also_said in wanted:
                return answer
        if not any(call["function"]["name"] in defaults for call in message.get("tool_calls", ())):
            return None
        wanted = [said(message, content, defaults) for content in _contents(message, raw)]
        return next((answer for answer in here if said(answer.message, None, defaults) in wanted), None)


class _Walk:
    """Through a conversation, from its first message."""

    def __init__(self, client: str) -> None:
        self.messages: list[dict[str, Any]] = []
        self.answers: list[tuple[GivenAnswer | None, bool]] = []
        self._digest = blake2b(client.encode(), digest_size=16)
        self._ids: dict[str, str] = {}  # of calls: the client's, and the one that was given
        self._numbers: dict[str, int] = {}
        self._n_calls = 0

    @property
    def place(self) -> bytes:
        return self._digest.digest()

    def hear(self, message: dict[str, Any]) -> None:
        id_ = message.get("tool_call_id")
        self._digest.update(heard(message, None if id_ is None else self._numbers.get(id_, id_)))
        if id_ in self._ids:
            message["tool_call_id"] = self._ids[id_]
        self.messages.append(message)

    def say(self, message: dict[str, Any], answer: GivenAnswer | None) -> None:
        shown = message if answer is None else dict(answer.message)
        if message.pop(CLEARED_REASONING, False):
            shown.pop("reasoning_content", None)
        self._digest.update(said(message) if answer is None else answer.said)
        for theirs, ours in zip(message.get("tool_calls", ()), shown.get("tool_calls", ()), strict=True):
            self._ids[theirs["id"]] = ours["id"]
            self._numbers[theirs["id"]] = self._n_calls
            self._n_calls += 1
        self.messages.append(shown)
        is_ours = answer is not None and answer.is_ours
        self.answers.append((answer, shown != message) if is_ours else (None, False))


def _contents(message: Message, raw: Message) -> Iterator[str]:
    """Between the parts of a text nothing is said: clients split and merge them."""
    yield message["content"]
    if isinstance(raw.get("content"), list):
        yield "".join(content_texts(raw["content"]))
