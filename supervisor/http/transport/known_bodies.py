"""KnownBodies: what was parsed of earlier bodies, for the next one of the same conversation.

A client sends its whole conversation each time. Those messages that stand in a body as they stood in an earlier one,
from the first on and to the character, are the values that were made of them then, and so is what stands around the
messages, if all of that is the same; the rest is parsed. Knows JSON, and how lists of messages are called; no dialect.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from luce.supervisor.http.errors import ApiError

LISTS = frozenset({"messages", "input"})
_MIN_CHARACTERS = 1 << 14  # of a body: a shorter one is parsed in no time
_MAX_CHARACTERS = 32 << 20  # of all that are known; their values take about twice as much again
_MAX_KNOWN = 64
_MAX_MESSAGES = 10_000  # of a body: to look at each costs more than it saves where none is known
_OPEN_END = 4  # the last messages, which the next turn of the same conversation may spell otherwise

_SPACE = re.compile(r"[ \t\n\r]*")
_scan = json.JSONDecoder(
    object_pairs_hook=lambda pairs: None,  # noqa: ARG005  a function of ours lets other threads run in between
    parse_int=len,  # without Python's limit of digits
).raw_decode
"""Where a value ends."""


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
    text: str
    """The head and those first messages that are objects: a number may go on."""
    ends: list[int]
    """Where each of these ends."""
    messages: list[KnownMessage]
    tail: str
    """From the end of the list on."""
    others: dict[str, Any]
    """What the body is, but for the messages. Nobody changes it."""

    @property
    def n_characters(self) -> int:
        return len(self.text) + len(self.tail)

    def n_same(self, text: str) -> int:
        """How many of its messages the text begins with."""
        if text.startswith(self.text):
            return len(self.ends)
        n, end = 0, len(self.head)
        if text.startswith(self.head):
            while text.startswith(self.text[end : self.ends[n]], end):  # not all are the same
                end = self.ends[n]
                n += 1
        return n


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
        number, body, n = self._most_alike(text, owner)
        if body is not None:
            try:
                return self._gone_on(text, body, n, number, parse)
            except ApiError:
                return parse(text)  # which tells the place as it is
        value = parse(text)
        name = name_of_messages(value)
        if name is None or len(value[name]) > _MAX_MESSAGES:
            return value
        head = text[: _begin_of_list(text, name)]
        others = {**value, name: None}
        return self._read(text, _Body(owner, name, head, head, [], [], "", others), value[name], None)

    def _gone_on(
        self, text: str, body: _Body, n: int, number: int | None, parse: Callable[[str], dict[str, Any]]
    ) -> dict[str, Any]:
        """A body with the first `n` messages of one before."""
        end, n_known = body.ends[n - 1], len(body.ends)
        begun = replace(body, text=body.text[:end], ends=body.ends[:n], messages=body.messages[:n])
        if text.endswith(body.tail, end):
            new = parse(f'{{"{body.name}":[null{text[end : len(text) - len(body.tail)]}]}}')
        else:
            # With something in the place of what is known: what is wrong behind it is wrong all the same.
            new = parse(f"{body.head}null{text[end:]}")
            begun = replace(begun, tail="", others={**new, body.name: None})
        return self._read(text, begun, new[body.name][1:], number if n + _OPEN_END >= n_known else None)

    def _read(self, text: str, begun: _Body, new: Sequence[Any], replaced: int | None) -> dict[str, Any]:
        """The messages known so far, and those behind them; to be known from now on in place of number `replaced`."""
        messages = [*begun.messages, *(KnownMessage(each) if isinstance(each, dict) else each for each in new)]
        at = len(begun.text)
        try:
            ends = list(_ends(text, at))
        except RecursionError:  # what is nested so deeply is read anew each time
            return {**begun.others, begun.name: messages}
        n_known = next((n for n, each in enumerate(messages) if not isinstance(each, KnownMessage)), len(messages))
        known = [*begun.ends, *ends][:n_known]
        tail = begun.tail or text[_behind_space(text, ends[-1] if ends else at) :]
        text = text[: known[-1] if known else at]
        self._keep(replace(begun, text=text, ends=known, messages=messages[:n_known], tail=tail), replaced)
        return {**begun.others, begun.name: messages}

    def _most_alike(self, text: str, owner: str) -> tuple[int | None, _Body | None, int]:
        """Its number, and how many of its messages are here."""
        with self._lock:
            bodies = [(number, body) for number, body in reversed(self._bodies.items()) if body.owner == owner]
        best: tuple[int | None, _Body | None, int] = (None, None, 0)
        for number, body in bodies:
            n = body.n_same(text)
            if n > best[2]:
                best = (number, body, n)
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
    for name in value.keys() & LISTS:
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


def _ends(text: str, at: int) -> Iterator[int]:
    """Of the elements of a list from a place on, behind its bracket or one of its elements. REQUIRES: the text is
    JSON."""
    at = _behind_space(text, at)
    while text[at] != "]":
        at = _scan(text, _behind_space(text, at + 1) if text[at] == "," else at)[1]
        yield at
        at = _behind_space(text, at)


def _behind_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()
