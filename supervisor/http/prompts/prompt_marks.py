"""Prompt marks: where, besides at the beginnings of messages, another prompt may part from this one.

Sessions of one program share tools and system text up to the first word that belongs to a folder, a machine or a day;
its sub-agents share the tools up to the first that starts sub-agents. Within a session, programs insert reminders and
drop them later. Positions in a rendered prompt's ids, found by its bytes: one that is not found costs nothing but a
longer way for the next prompt. Pure: knows no template, no engine and no program by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from luce.supervisor.text import MessageMark, RenderedChat

_MAX_HEAD = 16
_MAX_INSERTS = 8
_MIN_BLOCK_TOKENS = 32  # from one mark to the next: about what one more slice of a prompt costs
_MIN_TOKENS = 8  # before what is likely to differ

_SYSTEM = frozenset({"system", "developer"})

_MONTHS = rb"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_LOCAL = re.compile(
    rb"(?<![\w/\\.~<*-])(?:"
    rb"/(?!(?:bin|dev|etc|lib|path|proc|sys|usr)/)[\w.@+-]+/[\w.@+-]"  # a path, but for those that all have
    rb"|[A-Za-z]:\\[\w.@+-]+"
    rb"|\d{4}-\d\d-\d\d(?!\d)"
    rb"|\d{1,2}[/.]\d{1,2}[/.]\d{4}"
    rb"|(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? )?(?:" + _MONTHS + rb" \d{1,2}\b|\d{1,2} " + _MONTHS + rb" \d{4})"
    rb"|[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-"
    rb"|(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{12,}\b"
    rb"|v?\d+\.\d+\.\d+\b"
    rb")"
)
"""What belongs to a folder, a machine, a day or a release: paths, dates, ids, versions."""

_ABOUT_FOLDER = re.compile(rb"(?:cwd|director|folder|workspace|root|project)[^\n/]*\Z", re.IGNORECASE)
_PATH = re.compile(rb"[\w/.@+-]*[\w@+-]")

_STARTS_AGENTS = re.compile(r"agent|task|delegat", re.IGNORECASE)
"""Names of tools that sub-agents are not offered."""

_INSERT = re.compile(rb"<(?:system-reminder|total_tokens|token_budget|environment_details|environment_context)\b")
"""Reminders, counters and notes about the surroundings: programs put them into messages and change or drop them."""


@dataclass(frozen=True, slots=True)
class PromptMark:
    """So many ids behind the beginning of the template's message of this number."""

    message: int
    offset: int


@dataclass(frozen=True, slots=True)
class PromptHead:
    """A prompt up to the first answer: every turn of a conversation has it again."""

    digest: bytes
    marks: tuple[PromptMark, ...]


class PromptMarks:
    """Finds them. Any thread may use it."""

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        """`piece`: a token's bytes in the prompt."""
        self._piece = piece

    def find(
        self,
        chat: RenderedChat,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        known: PromptHead | None = None,
    ) -> tuple[tuple[PromptMark, ...], PromptHead | None]:
        """And the head, for the next turn. `messages` and `tools`: of which the prompt was rendered, contents as texts
        or as parts. `known`: the head of the turn before."""
        if not chat.marks:
            return (), known
        prompt = chat.prompt_bytes
        n_head = next((i for i, mark in enumerate(chat.marks) if i > 0 and mark.role in {"assistant", ""}), None)
        n_head = len(chat.marks) if n_head is None else n_head
        end = chat.marks[n_head].byte if n_head < len(chat.marks) else len(prompt)
        text = prompt[:end]
        digest = blake2b(text, digest_size=16).digest()
        if known is None or known.digest != digest:
            places = _head_places(text, messages, tools)
            known = PromptHead(digest, tuple(self._place(chat, n_head, text, places)))
        return (*known.marks, *self._inserts(chat, prompt, n_head, messages)), known

    def _inserts(
        self, chat: RenderedChat, prompt: bytes, n_head: int, messages: Sequence[Mapping[str, Any]]
    ) -> tuple[PromptMark, ...]:
        if n_head >= len(chat.marks):
            return ()
        begin = chat.marks[n_head].byte
        inserts = [match.start() for match in _INSERT.finditer(prompt, begin)]
        places = {_before_space(prompt, place) for place in inserts[-_MAX_INSERTS:]}
        places.update(_interruptions(prompt, begin, messages))
        latest = [(place, _MIN_TOKENS) for place in sorted(places)[-_MAX_INSERTS:]]
        return tuple(self._place(chat, len(chat.marks), prompt, latest))

    def _place(
        self, chat: RenderedChat, n_marks: int, prompt: bytes, places: Sequence[tuple[int, int]]
    ) -> Iterator[PromptMark]:
        """The ids that the bytes at these places belong to; not so close behind another mark, or before the next
        message's, as each says."""
        at = 0
        for number, mark in enumerate(chat.marks[:n_marks]):
            if at == len(places):
                return
            is_last = number + 1 == len(chat.marks)
            end = len(prompt) if is_last else chat.marks[number + 1].byte
            n_tokens = (len(chat.tokens) if is_last else chat.marks[number + 1].token) - mark.token
            here = []
            while at < len(places) and places[at][0] < end:
                here.append(places[at])
                at += 1
            # Of an answer other ids than the tokeniser's may be put in.
            if mark.role == "assistant":
                continue
            here = [entry for entry in here if entry[0] > mark.byte]
            last = 0
            for offset, (_, n_least) in zip(self._offsets(chat.tokens, mark, here), here, strict=True):
                if offset - last >= n_least and n_tokens - offset >= _MIN_TOKENS:
                    yield PromptMark(number, offset)
                    last = offset

    def _offsets(self, tokens: Sequence[int], mark: MessageMark, places: Sequence[tuple[int, int]]) -> Iterator[int]:
        """How many ids from the mark on end at or before each of the places, which rise."""
        token, byte = mark.token, mark.byte
        for place, _ in places:
            while token < len(tokens) and byte + (n := len(self._piece(tokens[token]))) <= place:
                byte += n
                token += 1
            yield token - mark.token


class _Places:
    """Bytes of a head before which a mark would do good, and how far from another one each is worth it."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[int, int]] = {}

    def add(self, place: int, rank: int, n_least: int = _MIN_TOKENS) -> None:
        self._found[place] = min((rank, n_least), self._found.get(place, (rank, n_least)))

    def best(self) -> list[tuple[int, int]]:
        ranked = sorted((rank, place, n_least) for place, (rank, n_least) in self._found.items())
        return sorted((place, n_least) for _, place, n_least in ranked[:_MAX_HEAD])


def _head_places(
    head: bytes, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[tuple[int, int]]:
    """Before folders that the text says it is about; where tools and blocks of system text end, before the first tool
    that starts agents, and where further parts of a user's message begin; before whatever else is local: in this order,
    as far as there may be so many."""
    places = _Places()
    names = (str(tool["function"]["name"]) for tool in tools)
    if (name := next(filter(_STARTS_AGENTS.search, names), None)) is not None:
        match = re.search(rb'(?:"name": ?"|<name>)(' + re.escape(name.encode()) + rb')["<]', head)
        if match is not None:  # the definition of whatever comes in its place begins alike, up to the name
            places.add(match.start(1), 1, _MIN_BLOCK_TOKENS)
    at, is_first = 0, True
    for message in messages:
        role = message.get("role")
        if role == "assistant":
            break
        for index, text in enumerate(_texts(message.get("content"))):
            begin = head.find(text, at)
            if begin < 0:
                continue
            at = begin + len(text)
            if index > 0 or (is_first and role in _SYSTEM):
                # What a template puts before the first system text are the tools.
                places.add(_before_space(head, begin), 1, _MIN_BLOCK_TOKENS)
            if role in _SYSTEM:
                places.add(at, 1, _MIN_BLOCK_TOKENS)
            else:
                for match in _INSERT.finditer(head, begin, at):
                    places.add(_before_space(head, match.start()), 1)
            is_first = False
            _add_local(places, head, begin, at)
    return places.best()


def _add_local(places: _Places, head: bytes, begin: int, end: int) -> None:
    for match in _LOCAL.finditer(head, begin, end):
        start = match.start()
        if not _ABOUT_FOLDER.search(head, max(begin, start - 48), start):
            places.add(start, 2)
            continue
        # Of two sessions' folders most often only the last part differs.
        places.add(start, 0)
        path = _PATH.match(head, start, end)
        last = head.rfind(b"/", start, path.end() if path else start)
        if last > start:
            places.add(last + 1, 0)


def _interruptions(prompt: bytes, begin: int, messages: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """Where the latest system texts in the middle of a conversation begin: a template may have made them part of
    another message."""
    end = len(prompt)
    n_left = _MAX_INSERTS
    n_leading = next((n for n, message in enumerate(messages) if message.get("role") not in _SYSTEM), len(messages))
    for message in reversed(messages[n_leading:]):
        if message.get("role") not in _SYSTEM:
            continue
        for text in reversed(_texts(message.get("content"))):
            place = prompt.rfind(text, begin, end)
            if place < 0:
                continue
            end = place
            yield _before_space(prompt, place)
            n_left -= 1
        if n_left <= 0:
            return


def _before_space(text: bytes, place: int) -> int:
    """What is inserted goes together with the space that parts it from what stands before."""
    while place > 0 and text[place - 1 : place].isspace():
        place -= 1
    return place


def _texts(content: Any) -> list[bytes]:
    """As templates show them: most leave out the space around."""
    parts = [content] if isinstance(content, str) else content if isinstance(content, Sequence) else ()
    texts = (part if isinstance(part, str) else part.get("text", "") for part in parts)
    return [stripped.encode() for text in texts if (stripped := text.strip())]
