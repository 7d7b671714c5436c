"""Sets of code points, and as GBNF: as they stand, or as a JSON string spells them. Knows no patterns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

Ranges = tuple[tuple[int, int], ...]
"""Sorted, apart from each other, both ends included; without surrogates."""

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_SHORT_ESCAPES = {0x22: '"', 0x5C: "\\", 0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r"}
_NUMBERED = [code for code in range(0x20) if code not in _SHORT_ESCAPES]


def ranges(pairs: Iterable[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(pairs):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def complement(points: Ranges) -> Ranges:
    """All code points but these and surrogates."""
    left: list[tuple[int, int]] = []
    begin = 0
    for first, last in ranges([*points, _SURROGATES]):
        if begin < first:
            left.append((begin, first - 1))
        begin = last + 1
    if begin <= _LAST:
        left.append((begin, _LAST))
    return tuple(left)


def without(points: Ranges, others: Ranges) -> Ranges:
    return complement(ranges([*complement(points), *others]))


ALL = complement(())
_PLAIN = without(ALL, ranges([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)]))
"""What stands in a JSON string as it is."""


def holds(points: Ranges, code: int) -> bool:
    return any(first <= code <= last for first, last in points)


def raw_class(points: Ranges) -> str:
    """GBNF of one of these characters. There must be one."""
    if points == ALL:
        return r"[^\U0010FFFF]"
    return f"[{''.join(_span(first, last) for first, last in points)}]"


def json_alternatives(points: Ranges) -> Sequence[str]:
    """GBNF of one of these characters inside a JSON string, in the spelling that writers of JSON use."""
    plain = without(points, complement(_PLAIN))
    written = [raw_class(plain)] if plain else []
    short = [escape for code, escape in _SHORT_ESCAPES.items() if holds(points, code)]
    if short:
        written.append(f'"\\\\" [{"".join(_class_character(ord(escape)) for escape in short)}]')
    numbered = [code for code in _NUMBERED if holds(points, code)]
    if numbered == _NUMBERED:
        return [*written, r'"\\u00" ("0" [0-7bef] | "1" [0-9a-f])']
    return [*written, *(f'"\\\\u{code:04x}"' for code in numbered)]


def literal(text: str) -> str:
    """A GBNF literal: what is no printable ASCII is written by its number."""
    return f'"{"".join(_literal_character(character) for character in text)}"'


def json_literal(value: Any) -> str:
    """Of the value as JSON; halves of characters by their numbers, as nothing else can be written."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if any(_SURROGATES[0] <= ord(character) <= _SURROGATES[1] for character in text):
        text = json.dumps(value, separators=(",", ":"))
    return literal(text)


def _literal_character(character: str) -> str:
    if " " <= character <= "~" and character not in '"\\':
        return character
    return f"\\U{ord(character):08X}"


def _span(first: int, last: int) -> str:
    if first == last:
        return _class_character(first)
    return f"{_class_character(first)}-{_class_character(last)}"


def _class_character(code: int) -> str:
    if chr(code).isascii() and chr(code).isalnum():
        return chr(code)
    return f"\\x{code:02X}" if code < 0x80 else f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"
