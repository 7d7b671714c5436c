"""A body's bytes as a JSON object that everything behind can express.

What clients repeat in their history must not end a session: text and numbers that JSON or UTF-8 cannot have are put
right, always in the same way, and `Mended` says so. What is no JSON is refused. Pure; knows no dialect.
"""

from __future__ import annotations

import codecs
import json
import math
import re
import sys
from enum import Enum
from typing import Any, NoReturn

from luce.supervisor.http.errors import ApiError, ErrorKind

MAX_DEPTH = 200  # of arrays and objects in each other; pydantic writes 255
MAX_VALUES = 2_000_000  # a body of 32 MiB could hold eight times as many, each an object of ours
MAX_MESSAGES = 100_000  # as with Anthropic: a conversation of so many fits no context, and takes seconds to read

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_TOKEN = re.compile(r'"(?:[^"\\]+|\\.)*+"?|[][{}]', re.DOTALL)  # a string, whole or not, or a bracket
_MAX_DIGITS = len(str(int(sys.float_info.max)))  # the parsers behind take no number that is no finite double
_DIGITS = "0123456789"
_LISTS = frozenset({"messages", "input"})
_CHARSETS = frozenset(
    codecs.lookup(name).name
    for name in (
        "utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "latin-1", "iso-8859-2",
        "iso-8859-15", "cp1250", "cp1251", "cp1252", "koi8-r", "gbk", "gb18030", "big5", "shift_jis", "cp932", "euc-jp",
        "euc-kr", "cp949",
    )
)  # fmt: skip
"""Those that clients send, and whose decoders take no longer than the text is."""


class Mended(Enum):
    """What was put right, in the words of the log."""

    BYTES = "bytes that are no valid text are taken as U+FFFD"
    SURROGATE = "halves of surrogate pairs are taken as U+FFFD"
    NUMBER = "numbers that are no finite double are taken as the largest one"
    CONSTANT = "NaN and Infinity are taken as null"
    TWICE = "where an object has a name twice, its last value is taken"
    DEPTH = f"what is nested more than {MAX_DEPTH} levels deep is taken as a text that holds its JSON"


def parse_object(data: bytes, *, charset: str | None = None, mended: set[Mended] | None = None) -> dict[str, Any]:
    """A JSON object of text, numbers and the like that everything behind can express. `charset` as the client names
    it. What is put right is added to `mended`. Raises ApiError."""
    found: set[Mended] = set() if mended is None else mended
    if not data.strip():
        _refuse("the body is empty: it has to be a JSON object")
    if len(data) > MAX_VALUES and data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_VALUES:
        raise ApiError(ErrorKind.TOO_LARGE, "too_many_values", f"the body has more than {MAX_VALUES:,} values")
    text = _text(data, charset, found)
    value = _Parser(found).parse(text)
    if (name := _name_of_messages(value)) is not None and len(value[name]) > MAX_MESSAGES:
        told = f"{name} has {len(value[name]):,} items: {MAX_MESSAGES:,} is the most"
        raise ApiError(ErrorKind.INVALID, "too_many_messages", told, param=name)
    return value


def _text(data: bytes, charset: str | None, mended: set[Mended]) -> str:
    """A byte order mark and the zero bytes of wide characters say more than what the client names; without either it
    is UTF-8."""
    encoding: str = json.detect_encoding(data)
    if encoding == "utf-8" and charset:
        encoding = _codec(data, charset)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        mended.add(Mended.BYTES)
        return data.decode(encoding, errors="replace")


def _codec(data: bytes, charset: str) -> str:
    try:
        name = codecs.lookup(charset).name
    except (LookupError, ValueError):  # ValueError: a zero byte
        name = ""
    if name in _CHARSETS:
        return name
    if name == "ascii":  # what it lacks is UTF-8's
        return "utf-8"
    try:
        data.decode()
    except UnicodeDecodeError:
        told = f"charset={charset[:40]} in the Content-Type is not known, and the body is not UTF-8: send UTF-8"
        raise ApiError(ErrorKind.INVALID, "bad_charset", told) from None
    return "utf-8"


def _name_of_messages(value: dict[str, Any]) -> str | None:
    """Which member of a body is its list of messages."""
    for name in value.keys() & _LISTS:
        if isinstance(value[name], list) and value[name] and isinstance(value[name][0], dict):
            return name
    return None


class _Parser:
    """Parses a text as a JSON object. Adds to `mended` what it puts right."""

    def __init__(self, mended: set[Mended]) -> None:
        self._mended = mended
        self._has_constants = False

    def parse(self, text: str) -> dict[str, Any]:
        """Raises ApiError."""
        try:
            value = self._load(text)
            is_deep = _is_deep(value)
        except RecursionError:
            is_deep = True
        if is_deep:
            self._mended.add(Mended.DEPTH)
            value = self._load(_flat(text))
        if not isinstance(value, dict):
            _refuse("the body has to be a JSON object")
        if self._has_constants:
            self._refuse_constants(value)
        if self._has_constants or (_SURROGATE_ESCAPE.search(text) and not _is_unicode(value)):
            return {self._plain(name): self._plain(item) for name, item in value.items()}
        return value

    def _load(self, text: str) -> Any:
        try:
            return json.loads(
                text,
                object_pairs_hook=self._object,
                parse_constant=self._constant,
                parse_float=self._float,
                parse_int=self._int if _has_long_number(text) else None,
            )
        except ValueError as error:
            _refuse(f"the body is not JSON: {error}")

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            self._mended.add(Mended.TWICE)
        return value

    def _constant(self, name: str) -> float:
        self._has_constants = True
        return float(name)

    def _float(self, text: str) -> float:
        value = float(text)
        if math.isinf(value):
            self._mended.add(Mended.NUMBER)
            return math.copysign(sys.float_info.max, value)
        return value

    def _int(self, text: str) -> int | float:
        if len(text) < _MAX_DIGITS or math.isfinite(float(text)):
            return int(text)
        return self._float(text)

    @staticmethod
    def _refuse_constants(body: dict[str, Any]) -> None:
        """What stands among the fields is said now, and is no history."""
        for name, value in body.items():
            if isinstance(value, float) and not math.isfinite(value):
                text = f"{name}: NaN and Infinity are no numbers in JSON"
                raise ApiError(ErrorKind.INVALID, "invalid_json", text, param=name)

    def _plain(self, value: Any) -> Any:
        """The value without halves of surrogate pairs, and without numbers that JSON does not have."""
        match value:
            case str() if _SURROGATE.search(value):
                self._mended.add(Mended.SURROGATE)
                return _SURROGATE.sub("\ufffd", value)
            case float() if not math.isfinite(value):
                self._mended.add(Mended.CONSTANT)
                return None
            case dict():
                return {self._plain(name): self._plain(item) for name, item in value.items()}
            case list():
                return [self._plain(item) for item in value]
            case _:
                return value


def _is_unicode(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _has_long_number(text: str) -> bool:
    """So many digits in a row have one at one of the places that are so far apart: only there it is looked."""
    for number, character in enumerate(text[::_MAX_DIGITS]):
        if character in _DIGITS:
            at = number * _MAX_DIGITS
            before, behind = text[max(0, at - _MAX_DIGITS) : at], text[at : at + _MAX_DIGITS]
            n_not = len(before.rstrip(_DIGITS)) + len(behind.lstrip(_DIGITS))
            if len(before) + len(behind) - n_not >= _MAX_DIGITS:
                return True
    return False


def _is_deep(value: Any) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return False
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
    return bool(level)


def _flat(text: str) -> str:
    """JSON in which texts stand for what is nested too deeply."""
    pieces: list[str] = []
    depth = done = begin = 0
    for token in _TOKEN.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth == MAX_DEPTH + 1:
                begin = token.start()
        elif token[0] in "]}":
            depth -= 1
            if depth == MAX_DEPTH:
                pieces += [text[done:begin], json.dumps(text[begin : token.end()])]
                done = token.end()
    return "".join([*pieces, text[done:begin] if depth > MAX_DEPTH else text[done:]])


def _refuse(text: str) -> NoReturn:
    raise ApiError(ErrorKind.INVALID, "invalid_json", text)
