"""KnownBodies: what was parsed of earlier bodies, for the next one of the same conversation.

A client sends its whole conversation each time. Those messages that stand in a body as they stood in an earlier one,
from the first on and to the character, are the values that were made of them then; what is around and behind them is
parsed. Knows JSON, and how lists of messages are called; no dialect.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from luce.supervisor.http.errors import ApiError

_LISTS = frozenset({"messages", "input"})
_MIN_CHARACTERS = 1 << 14  # of a body: a shorter one is parsed in no time
_MAX_CHARACTERS = 32 << 20  # of all that are known; their values take about twice as much again
_MAX_KNOWN = 64
_MAX_MESSAGES = 10_000  # of a body: to look at each costs more than it saves where none is known
_OPEN_END = 4  # the last messages, which the next turn of the same conversation may spell otherwise

_SPACE = re.compile(r"[ \t\n\r]*")
_scan = json.JSONDecoder(object_pairs_hook=lambda pairs: None).raw_decode  # noqa: ARG005  where a value ends
"""A function of ours for each object lets other threads run in between."""


class KnownMessage(dict[str, Any]):
    """A message that nobody changes: it comes again as the same object, at the same place of its list."""

    __slots__ = ("made",)

    def __init__(self, message: dict[str, Any]) -> None:
        super().__init__(message)
        self.made: Any = None
        """What the dialect has made of it."""


@dataclass(frozen=True, slots=True)
class _Body:
    owner: str
    name: str
    """Of the list."""
    head: str
    """Up to the first message."""
    texts: list[str]
    """Of each message, with what parts it from the one before."""
    messages: list[Any]

    @property
    def n_characters(self) -> int:
        return len(self.head) + sum(map(len, self.texts))

    def n_same(self, text: str) -> tuple[int, int]:
        """How many of its messages the text begins with, and where they end in it."""
        n, end = 0, len(self.head)
        if text.startswith(self.head):
            while n < len(self.texts) and text.startswith(self.texts[n], end):
                if not isinstance(self.messages[n], KnownMessage):
                    break  # a number may go on
                end += len(self.texts[n])
                n += 1
        return n, end


class KnownBodies:
    """The latest used. Any thread may use it."""

    def __init__(self) -> None:
        self._bodies: OrderedDict[int, _Body] = OrderedDict()
        self._numbers = count()
        self._n_characters = 0
        self._lock = threading.Lock()

    def parsed(self, text: str, owner: str, parse: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        """What `parse` makes of a body; it raises ApiError. `owner`: for nobody else the messages count as known."""
        if len(text) < _MIN_CHARACTERS:
            return parse(text)
        number, body, n, end = self._most_alike(text, owner)
        if body is not None:
            try:
                # With something in the place of what is known: what is wrong behind it is wrong all the same.
                value = parse(f"{body.head}null{text[end:]}")
            except ApiError:
                return parse(text)  # which tells the place as it is
            new = value[body.name][1:]
        else:
            value = parse(text)
            name = name_of_messages(value)
            if name is None or len(value[name]) > _MAX_MESSAGES:
                return value
            end = _begin_of_list(text, name)
            body, new = _Body(owner, name, text[:end], [], []), value[name]
        messages = [*body.messages[:n], *(KnownMessage(each) if isinstance(each, dict) else each for each in new)]
        grown = _Body(owner, body.name, body.head, [*body.texts[:n], *_texts(text, end)], messages)
        self._keep(grown, number if n + _OPEN_END >= len(body.texts) else None)
        return {**value, body.name: list(messages)}

    def _most_alike(self, text: str, owner: str) -> tuple[int | None, _Body | None, int, int]:
        """Its number, how many of its messages are here, and where they end."""
        with self._lock:
            bodies = [(number, body) for number, body in reversed(self._bodies.items()) if body.owner == owner]
        best: tuple[int | None, _Body | None, int, int] = (None, None, 0, 0)
        for number, body in bodies:
            n, end = body.n_same(text)
            if n > best[2]:
                best = (number, body, n, end)
        return best

    def _keep(self, body: _Body, replaced: int | None) -> None:
        with self._lock:
            if replaced is not None and replaced in self._bodies:
                self._drop(replaced)
            self._bodies[next(self._numbers)] = body
            self._n_characters += body.n_characters
            while len(self._bodies) > _MAX_KNOWN or self._n_characters > _MAX_CHARACTERS:
                self._drop(next(iter(self._bodies)))

    def _drop(self, number: int) -> None:
        self._n_characters -= self._bodies.pop(number).n_characters


def name_of_messages(value: dict[str, Any]) -> str | None:
    """Which member of a body is its list of messages."""
    for name in value.keys() & _LISTS:
        if isinstance(value[name], list) and value[name] and isinstance(value[name][0], dict):
            return name
    return None


def _begin_of_list(text: str, wanted: str) -> int:
    """Behind its bracket. REQUIRES: the text is an object that has it."""
    at = _behind_space(text, 0) + 1
    while True:
        name, at = _scan(text, _behind_space(text, at))
        at = _behind_space(text, _behind_space(text, at) + 1)
        if name == wanted:
            return at + 1
        at = _behind_space(text, _scan(text, at)[1]) + 1


def _texts(text: str, at: int) -> Iterator[str]:
    """From a place of a list on, behind its bracket or one of its elements. REQUIRES: the text is JSON."""
    begin, at = at, _behind_space(text, at)
    while text[at] != "]":
        at = _scan(text, _behind_space(text, at + 1) if text[at] == "," else at)[1]
        yield text[begin:at]
        begin, at = at, _behind_space(text, at)


def _behind_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()
