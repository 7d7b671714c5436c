"""JSON calls with which an answer begins, bare, in a list or in a code fence: read as they come.

Models that see their tools as JSON often write a call so, in place of their template's form. An answer's first
character says whether that may be: a brace, a bracket, a fence or a tag. The text is held back from there on while it
may still be a call of one of the tools, and no longer. Pure; it must not know what becomes of a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from luce.supervisor.http.prompts.history.characters import whole_characters
from luce.supervisor.http.prompts.history.lenient_json import lenient_json

MAX_HELD_CHARACTERS = 1 << 20
_MAX_HEAD = 512  # characters in which a call has said what it is

_NAMES = ("name", "function")
_ARGUMENTS = ("arguments", "parameters", "input")
_KINDS = ("function", "tool_call")
_FIRST_KEYS = (*_NAMES, *_ARGUMENTS, "type")

_OPENERS = ("```", "~~~", "<tool_call>", "<tools>", "<function_call>")
_CLOSERS = ("</tool_call>", "</tools>", "</function_call>")
_BEFORE = re.compile(r"(?:\s|(?:```|~~~)[\w+-]{0,32}|<(?:tool_call|tools|function_call)>|\[)*")
_BETWEEN = re.compile(r"(?:\s|(?:```|~~~)[\w+-]{0,32}|</?(?:tool_call|tools|function_call)>|[\[\]},;])*")
_KEY = re.compile(r"""\{\s*(?:(["'])(\w*)(?:(\1)\s*:?\s*)?)?""")
_ENDS_OF = {"{": "}", "[": "]"}
_ENDS = frozenset("}]")
_VALUE = re.compile(r"""(["'])([^"'\\]*)(\1)?""")


@dataclass(frozen=True, slots=True)
class RepairedCall:
    name: str
    arguments: str
    """JSON text of an object."""

    @classmethod
    def of(cls, name: str, arguments: Mapping[str, Any]) -> RepairedCall:
        return cls(name, whole_characters(json.dumps(arguments, ensure_ascii=False)))


def read_json_call(value: Any, tools: Collection[str]) -> RepairedCall | None:
    """The call of one of the tools that a JSON value is, if it is one."""
    if not isinstance(value, Mapping):
        return None
    said = value["function"] if isinstance(value.get("function"), Mapping) else value
    name = next((said[key] for key in _NAMES if key in said), None)
    arguments = next((said[key] for key in _ARGUMENTS if key in said), None)
    if isinstance(arguments, str):
        arguments = lenient_json(arguments)
    if not isinstance(name, str) or name not in tools or not isinstance(arguments, Mapping):
        return None
    return RepairedCall.of(name, arguments)


class LeadingCalls:
    """Of one answer. `feed` gives the calls that have come, and the text behind them that can be shown."""

    def __init__(self, tools: Collection[str], max_calls: int | None = None) -> None:
        """`max_calls`: behind so many the answer has ended; None: behind none."""
        self._tools = tools
        self._max_calls = max_calls
        self._n_calls = 0
        self._rest = ""  # held back
        self._object: _OpenObject | None = None  # at the beginning of the rest, behind what may stand before it
        self.is_open = True
        """Whether a call may still come."""

    @property
    def has_ended(self) -> bool:
        return self._n_calls == self._max_calls

    def feed(self, text: str) -> tuple[list[RepairedCall], str]:
        self._rest += text
        calls: list[RepairedCall] = []
        while self.is_open and (end := self._end_of_object()) is not None:
            call = None if self._object is None else self._object.read(self._rest[:end], self._tools)
            if call is None:
                self.is_open = False
                break
            calls.append(call)
            self._n_calls += 1
            self._object = None
            self._rest = self._rest[end:]
            self.is_open = not self.has_ended
        if self.has_ended:
            self._rest = ""  # as what a token has behind a stop string
        return calls, "" if self.is_open else self.release()

    def release(self) -> str:
        """What is held back: something else follows it. Behind white space alone a call may still come."""
        text, self._rest, self._object = self._rest, "", None
        if self._n_calls:
            text = _BETWEEN.sub("", text, count=1)
        self.is_open = self.is_open and not text.strip()
        return text

    def finish(self) -> tuple[list[RepairedCall], str]:
        """The answer is complete: the call that only lacks its end, or the rest of the text."""
        call = None if self._object is None else self._object.read(self._rest, self._tools)
        if call is not None:
            self._rest = ""
        return [] if call is None else [call], self.release()

    def _end_of_object(self) -> int | None:
        """Behind the object that the rest begins with, 0 if it is none of a call; None: more has to come."""
        if self._object is None:
            at = self._begin()
            if at is None:
                return None if len(self._rest) <= _MAX_HEAD else 0
            if at > _MAX_HEAD or self._rest[at] != "{":
                return 0
            self._object = _OpenObject(at)
        if self._object.is_call is None:
            head = self._rest[self._object.begin :][:_MAX_HEAD]
            is_call = _is_call(head, self._tools)
            self._object.is_call = False if is_call is None and len(head) == _MAX_HEAD else is_call
        if self._object.is_call is False or len(self._rest) > MAX_HELD_CHARACTERS:
            self._object = None
            return 0
        return self._object.scan(self._rest)

    def _begin(self) -> int | None:
        """Behind what may stand before a call; None: more of that may come."""
        before, marks = (_BETWEEN, (*_OPENERS, *_CLOSERS)) if self._n_calls else (_BEFORE, _OPENERS)
        match = before.match(self._rest)
        assert match is not None, "it may be empty"
        return None if _may_go_on(self._rest[match.end() :], marks) else match.end()


@dataclass(slots=True)
class _OpenObject:
    """A JSON object on its way, or one in Python's quotes."""

    begin: int
    is_call: bool | None = None
    """By its first keys; None: they have not come."""
    at: int = field(init=False)
    _ends: list[str] = field(default_factory=list)
    _quote: str = ""
    _is_escaped: bool = False
    _last: str = ""

    def __post_init__(self) -> None:
        self.at = self.begin

    def scan(self, text: str) -> int | None:
        """Its end in `text`, where that has come: behind its last bracket, or where another one is missing."""
        for at in range(self.at, len(text)):
            character = text[at]
            if self._quote:
                if not self._is_escaped and character == self._quote:
                    self._quote = ""
                self._is_escaped = not self._is_escaped and character == "\\"
                continue
            if character.isspace():
                continue
            is_end = character in "}]"
            if self._last in _ENDS and not is_end and character != ",":
                return at
            self._last = character
            if character in "\"'":
                self._quote = character
            elif character in "{[":
                self._ends.append(_ENDS_OF[character])
            elif is_end and character != self._ends.pop():
                return at
            elif is_end and not self._ends:
                return at + 1
        self.at = len(text)
        return None

    def read(self, text: str, tools: Collection[str]) -> RepairedCall | None:
        return read_json_call(lenient_json(text[self.begin :]), tools)


def _is_call(text: str, tools: Collection[str]) -> bool | None:
    """Whether an object may be a call, as far as it has come; None: its first keys have to come."""
    key = _KEY.match(text)
    if key is None or (key.end() < len(text) and key[3] is None):
        return False
    if key[3] is None:
        return None if _may_go_on(key[2] or "", _FIRST_KEYS) else False
    if key[2] in _ARGUMENTS:
        return True
    value = text[key.end() :]
    if key[2] == "function" and value.startswith("{"):
        return _is_call(value, tools)
    wanted = _KINDS if key[2] == "type" else tools if key[2] in _NAMES else ()
    word = _VALUE.match(value)
    if value == "" or (word is not None and word[3] is None and word.end() == len(value)):
        return None if _may_go_on("" if word is None else word[2], wanted) else False
    return word is not None and word[2] in wanted


def _may_go_on(text: str, words: Iterable[str]) -> bool:
    return any(word.startswith(text) for word in words)
