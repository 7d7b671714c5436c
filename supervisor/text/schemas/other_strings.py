"""JSON strings that are none of some, as GBNF, for the keys of further properties and for `not`.

Each character has one spelling here, so that none of the others comes in disguise.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from luce.supervisor.text.schemas.code_points import ALL, literal, ranges, raw_class, without
from luce.supervisor.text.schemas.rules import KEY_CHARACTER, Rules

_ESCAPED = '"\\bfnrt'
_PLAIN = without(ALL, ranges([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F)]))


class _Node:
    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.is_taken = False


def other_strings(rules: Rules, taken: Iterable[str]) -> str:
    """The name of a rule for strings that are none of `taken`."""
    root = _Node()
    for units in map(_units, taken):
        if "\\u" in units:
            continue  # no character of these strings is written so
        node = root
        for unit in units:
            node = node.children.setdefault(unit, _Node())
        node.is_taken = True
    return rules.add(f'"\\"" {_written(root, rules)} "\\""')


def _written(root: _Node, rules: Rules) -> str:
    """From the leaves up, without recursion: names may be long."""
    order = [root]
    names: dict[int, str] = {}
    for node in order:
        order += node.children.values()
    for node in reversed(order):
        units = node.children
        plain = without(_PLAIN, ranges((ord(unit), ord(unit)) for unit in units if len(unit) == 1))
        escapes = "".join(character for character in _ESCAPED if f"\\{character}" not in units)
        ways = [] if node.is_taken else ['""']
        ways.append(f"{raw_class(plain)} {KEY_CHARACTER}*")
        if escapes:
            written = escapes.replace("\\", "\\\\")
            ways.append(f'"\\\\" [{written}] {KEY_CHARACTER}*')
        ways += [f"{literal(unit)} {names[id(child)]}" for unit, child in units.items()]
        names[id(node)] = rules.add(" | ".join(ways))
    return names[id(root)]


def _units(text: str) -> list[str]:
    """Characters, and the first two of an escape."""
    written = json.dumps(text, ensure_ascii=False)[1:-1]
    units, at = [], 0
    while at < len(written):
        size = 2 if written[at] == "\\" else 1
        units.append(written[at : at + size])
        at += size
    return units
