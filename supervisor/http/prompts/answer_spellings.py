"""AnswerSpellings: answers as the messages that they were, so that a client's own spelling of one is rendered as it was
given.

Clients send an answer back in other bytes than they got, and often without its reasoning. The template would make
another prompt of that, which shares nothing with the text in memory from there on. So a message that means the same as
an answer that this client got in the same conversation is replaced by that answer, whole: the template sees what it
would see of a client that sends back what it got, and keeps or strips the reasoning by its own rules.

An answer that nobody here gave (another server did, or an earlier one) is taken as the client spells it first, and
stays so: what was read of it is in memory.

An answer that went on from an assistant's message is joined to it: together they are the text in memory.

The same conversation is the same messages before, in their canonical form, for the same client: no other client's
answer is ever put in. What a message was found to be is kept (conversations.py) and holds as long as the same
answers are known at its place. Knows messages; no template, no ids and no engine.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from luce.supervisor.http.prompts.canonical_message import Defaults, defaults_of, heard, reasoning_of, said
from luce.supervisor.http.prompts.conversations import Conversation, Conversations, exact_bytes, exact_key
from luce.supervisor.http.prompts.history.arguments import with_readable_arguments
from luce.supervisor.http.prompts.message_normalizer import CLEARED_REASONING, content_texts, normalise_messages
from luce.supervisor.http.prompts.templates.tool_history import RetoldMessage
from luce.supervisor.text import ChatMessage

_CONVERSATIONS_BYTES = 64 << 20
_ENTRY_BYTES = 1500  # beside an answer's texts, about
_MAX_AT_ONE_PLACE = 16
_OPEN_END = 4  # the last messages of a conversation, which its next turn may spell otherwise

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
    continues: bool = False
    """It goes on from the assistant's message before it."""

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
    conversation: Conversation[Any]
    """The record of it."""
    is_last_ours: bool
    """The last message is an answer that was given to those before it, or stands where one was that went on from the
    message before."""

    def answers_in(self, shown: Sequence[Message]) -> Sequence[tuple[GivenAnswer | None, bool]]:
        """`answers` for the assistant's messages of the same conversation as a template is shown it."""
        if shown is self.messages:
            return self.answers
        said = [message for message in self.messages if message.get("role") == "assistant"]
        known = {id(message): answer for message, answer in zip(said, self.answers, strict=True)}
        told = (message for message in shown if message.get("role") == "assistant")
        return [
            known.get(id(message.told if isinstance(message, RetoldMessage) else message), (None, False))
            for message in told
        ]


@dataclass(frozen=True, slots=True)
class _ReadMessage:
    """What a message was found to be, and where the conversation stands behind it."""

    shown: ChatMessage | None
    """None: nobody is to see it."""
    digest: blake2b
    answer: tuple[GivenAnswer | None, bool] | None = None
    """Of an assistant's message: as in SpelledConversation.answers."""
    place: bytes = b""
    known: tuple[GivenAnswer, ...] = ()
    """The answers at its place."""
    call_ids: tuple[tuple[str, str], ...] = ()
    """Of its calls: the client's, and the one that was given."""
    is_ours: bool = False
    joins: bool = False
    """`shown` and `answer` are also those of the message before it."""


class AnswerSpellings:
    """The latest used answers, up to so many bytes. Any thread may use it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._given: OrderedDict[bytes, tuple[GivenAnswer, ...]] = OrderedDict()
        self._lock = threading.Lock()
        self._conversations: Conversations[_ReadMessage] = Conversations(_CONVERSATIONS_BYTES)
        self.n_bytes = 0

    def read(
        self,
        messages: Sequence[Message],
        client: str = "",
        *,
        keeps_last: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> SpelledConversation:
        """`keeps_last`: the last message stays as it is, since the answer goes on from it; one that goes on from the
        message before is joined to that. `tools`: whose arguments may have been filled in. Raises
        UnreadableContentError."""
        walk = _Walk(client)
        defaults = defaults_of(tools)
        owner = exact_bytes((client, defaults))
        assert owner is not None, "these are texts"
        keys = list(_keys(messages[: len(messages) - keeps_last]))
        before, n_same = self._conversations.find(owner, keys)
        reads = [] if before is None else self._holding(before.values[:n_same])
        n_known = len(reads)
        for read in reads:
            walk.go_on(read)
        for number, raw in enumerate(messages[n_known:], n_known):
            read = self._read_message(walk, raw, defaults, is_kept=keeps_last and number == len(messages) - 1)
            walk.go_on(read)
            reads.append(read)
        is_next = before is not None and n_known + _OPEN_END >= len(before.keys)
        conversation = self._conversations.keep(owner, keys, reads[: len(keys)], before, is_next=is_next)
        is_last_ours = bool(reads) and (reads[-1].is_ours or reads[-1].joins)
        return SpelledConversation(walk.messages, walk.answers, walk.place, conversation, is_last_ours)

    def _holding(self, reads: Sequence[_ReadMessage]) -> list[_ReadMessage]:
        """Those up to the first at whose place other answers are known by now."""
        with self._lock:
            for number, read in enumerate(reads):
                if read.answer is None:
                    continue
                if self._given.get(read.place, ()) is not read.known:
                    return list(reads[:number])
                if read.known:
                    self._given.move_to_end(read.place)
        return list(reads)

    def _read_message(self, walk: _Walk, raw: Message, defaults: Defaults, *, is_kept: bool) -> _ReadMessage:
        for message in normalise_messages([raw]):
            if message.get("role") != "assistant":
                return walk.hear(message)
            known = self._known_at(walk.place)
            answer = _find(known, message, raw, defaults)
            # An answer to what was begun was given here: this is it, or what the client has made of it.
            continues = any(given.is_ours and given.continues for given in known)
            if is_kept and not continues:
                return replace(walk.say(message, None, ()), is_ours=answer is not None and answer.is_ours)
            if answer is None and (met := self._meet(message, raw, continues=continues)) is not None:
                answer, known = met, self._keep(walk.place, met)
            return walk.say(message, answer, known)
        return walk.skip()

    def keep(self, place: bytes, message: Message, *, continues: bool = False) -> GivenAnswer:
        """An answer that was given. `continues`: from the assistant's message before it."""
        answer = GivenAnswer(message, said(message), reasoning_of(message), continues=continues)
        self._keep(place, answer)
        return answer

    def _meet(self, message: Message, raw: Message, *, continues: bool) -> GivenAnswer | None:
        """An answer that the client has from elsewhere, or has changed, for the first time."""
        if self._max_bytes == 0 or CLEARED_REASONING in message:
            return None
        own, *others = (said(message, content) for content in _contents(message, raw))
        return GivenAnswer(dict(message), own, reasoning_of(message), b"".join(others), False, continues)

    def _keep(self, place: bytes, answer: GivenAnswer) -> tuple[GivenAnswer, ...]:
        """All that are known at the place now, in a tuple of their own: what was found by another one holds no more."""
        with self._lock:
            here = self._given.get(place, ())
            same = (answer.message, answer.continues)
            leaving = [other for other in here if (other.message, other.continues) == same]
            if not leaving and len(here) >= _MAX_AT_ONE_PLACE:
                leaving = [here[0]]
            here = (*(other for other in here if other not in leaving), answer)
            self._given[place] = here
            self.n_bytes += answer.n_bytes - sum(other.n_bytes for other in leaving)
            self._given.move_to_end(place)
            while self.n_bytes > self._max_bytes and self._given:
                _, oldest = self._given.popitem(last=False)
                self.n_bytes -= sum(other.n_bytes for other in oldest)
        return here

    def _known_at(self, place: bytes) -> tuple[GivenAnswer, ...]:
        with self._lock:
            here = self._given.get(place, ())
            if here:
                self._given.move_to_end(place)
        return here


class _Walk:
    """Through a conversation, from its first message. Each is read where the walk stands; then it goes on."""

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

    def hear(self, message: dict[str, Any]) -> _ReadMessage:
        id_ = message.get("tool_call_id")
        digest = self._digest_behind(heard(message, None if id_ is None else self._numbers.get(id_, id_)))
        if id_ in self._ids:
            message["tool_call_id"] = self._ids[id_]
        return _ReadMessage(ChatMessage(message), digest)

    def say(self, message: dict[str, Any], answer: GivenAnswer | None, known: tuple[GivenAnswer, ...]) -> _ReadMessage:
        is_cleared = message.pop(CLEARED_REASONING, False)
        spelled = dict(message if answer is None else answer.message)
        if is_cleared:
            spelled.pop("reasoning_content", None)
        calls = zip(message.get("tool_calls", ()), spelled.get("tool_calls", ()), strict=True)
        is_ours = answer is not None and answer.is_ours
        joins = answer is not None and answer.continues
        shown = with_readable_arguments(spelled)
        return _ReadMessage(
            ChatMessage(_joined(self.messages[-1], shown) if joins else shown),
            self._digest_behind(said(message) if answer is None else answer.said),
            (answer, spelled != message) if is_ours else (None, False),
            self.place,
            known,
            tuple((theirs["id"], ours["id"]) for theirs, ours in calls),
            is_ours,
            joins,
        )

    def skip(self) -> _ReadMessage:
        return _ReadMessage(None, self._digest)

    def go_on(self, read: _ReadMessage) -> None:
        self._digest = read.digest
        if read.joins:
            self.messages.pop()
            self.answers.pop()
        if read.shown is not None:
            self.messages.append(read.shown)
        if read.answer is not None:
            self.answers.append(read.answer)
        for theirs, ours in read.call_ids:
            self._ids[theirs] = ours
            self._numbers[theirs] = self._n_calls
            self._n_calls += 1

    def _digest_behind(self, data: bytes) -> blake2b:
        digest = self._digest.copy()
        digest.update(data)
        return digest


def _joined(begun: Message, rest: Message) -> Message:
    """One message of a beginning and of the answer that went on from it."""
    joined = {**begun, **rest, "content": begun["content"] + rest["content"]}
    if reasoning := (begun.get("reasoning_content") or "") + (rest.get("reasoning_content") or ""):
        joined["reasoning_content"] = reasoning
    return joined


def _keys(messages: Sequence[Message]) -> Iterator[bytes]:
    """Up to the first that has none."""
    for key in map(exact_key, messages):
        if key is None:
            return
        yield key


def _find(known: Sequence[GivenAnswer], message: Message, raw: Message, defaults: Defaults) -> GivenAnswer | None:
    """The latest of them that says the same, and reasons the same if the message reasons at all."""
    if not known:
        return None
    reasoning = reasoning_of(message)
    here = [answer for answer in reversed(known) if reasoning in ("", answer.reasoning)]
    wanted = [said(message, content) for content in _contents(message, raw)]
    for answer in here:
        if answer.said in wanted or answer.also_said in wanted:
            return answer
    if not any(call["function"]["name"] in defaults for call in message.get("tool_calls", ())):
        return None
    wanted = [said(message, content, defaults) for content in _contents(message, raw)]
    return next((answer for answer in here if said(answer.message, None, defaults) in wanted), None)


def _contents(message: Message, raw: Message) -> Iterator[str]:
    """Between the parts of a text nothing is said: clients split and merge them."""
    yield message["content"]
    if isinstance(raw.get("content"), list):
        yield "".join(content_texts(raw["content"]))
