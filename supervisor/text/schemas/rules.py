"""Rules: the GBNF rules that a schema is made into, each body once, and the rules that all schemas share.

Knows no schemas. All names begin with `luce-`, so that they meet no rule of llama.cpp's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from luce.supervisor.text.schemas.notes import UnsupportedError

PREFIX = "luce-"
MAX_REPEATS = 2000
"""The grammar engine takes no repetition of more."""
MAX_COUNT = 1_000_000
"""A limit from here on is out of an answer's reach."""
_BLOCK = 100

SPACE = "luce-space"
VALUE = "luce-value"
STRING = "luce-string"
CHARACTER = "luce-character"
NUMBER = "luce-number"
INTEGER = "luce-integer"
OBJECT = "luce-object"
ARRAY = "luce-array"
KEY_CHARACTER = "luce-key-character"

SHARED: Mapping[str, str] = {
    SPACE: r'| " " | "\n"{1,2} [ \t]{0,20}',
    VALUE: f'{OBJECT} | {ARRAY} | {STRING} | {NUMBER} | "true" | "false" | "null"',
    # Halves of surrogate pairs come in pairs only.
    CHARACTER: (
        r'[^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" ([0-9a-ce-fA-CE-F] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}'
        r' | [dD] [89abAB] [0-9a-fA-F]{2} "\\u" [dD] [c-fC-F] [0-9a-fA-F]{2}))'
    ),
    # One spelling for each, so that a key that is taken cannot come again in another one.
    KEY_CHARACTER: r'[^"\\\x00-\x1F\x7F] | "\\" ["\\bfnrt]',
    STRING: rf'"\"" {CHARACTER}* "\""',
    INTEGER: '"-"? ("0" | [1-9] [0-9]{0,15})',
    NUMBER: f'{INTEGER} ("." [0-9]{{1,16}})? ([eE] [-+]? [0-9]{{1,2}})?',
    OBJECT: (f'"{{" {SPACE} ({STRING} ":" {SPACE} {VALUE} ("," {SPACE} {STRING} ":" {SPACE} {VALUE})*)? {SPACE} "}}"'),
    ARRAY: f'"[" {SPACE} ({VALUE} ("," {SPACE} {VALUE})*)? {SPACE} "]"',
}

_OPAQUE = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]')
_NAME = re.compile(r"luce-[A-Za-z0-9-]+")


class Rules:
    """Of one schema. `namespace` tells its rules apart from other schemas'."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._bodies: dict[str, str] = {}
        self._names: dict[str, str] = {}

    @property
    def bodies(self) -> Mapping[str, str]:
        return self._bodies

    @property
    def n_characters(self) -> int:
        return sum(map(len, self._bodies.values()))

    def add(self, body: str) -> str:
        """The name of a rule of this body."""
        if (known := self._names.get(body)) is not None:
            return known
        name = self.reserve()
        self.define(name, body)
        self._names[body] = name
        return name

    def reserve(self) -> str:
        """A name whose body comes later."""
        name = f"{PREFIX}{self._namespace}-{len(self._bodies)}"
        self._bodies[name] = ""
        return name

    def define(self, name: str, body: str) -> None:
        self._bodies[name] = body

    def item(self, alternatives: Iterable[str]) -> str:
        """One of these, as something that can be repeated."""
        listed = list(alternatives)
        if len(listed) == 1 and (_NAME.fullmatch(listed[0]) or _OPAQUE.fullmatch(listed[0])):
            return listed[0]
        return self.add(" | ".join(listed))

    def repeated(self, item: str, least: int, most: int | None) -> str:
        """`item` (of `item()`) so often. Raises UnsupportedError."""
        if least > MAX_REPEATS:
            raise UnsupportedError(f"{least} is more than the {MAX_REPEATS} repetitions that a grammar takes")
        if most is None or most >= MAX_COUNT:
            return {0: f"{item}*", 1: f"{item}+"}.get(least, f"{item}{{{least},}}")
        if most <= MAX_REPEATS:
            return f"{item}{{{least},{most}}}" if most != least else f"{item}{{{least}}}" if least != 1 else item
        # Blocks of equal length, and what is left: as many as there can be, in far fewer rules.
        block = self.add(f"{item}{{{_BLOCK}}}")
        n_blocks, rest = divmod(most - least, _BLOCK)
        if n_blocks > MAX_REPEATS:
            wide = self.add(f"{block}{{{_BLOCK}}}")
            n_wide, n_blocks = divmod(n_blocks, _BLOCK)
            some = f"({wide}{{0,{n_wide - 1}}} {block}{{0,{_BLOCK - 1}}} {item}{{0,{_BLOCK - 1}}}"
            some += f" | {wide}{{{n_wide}}} ({self._blocks(block, item, n_blocks, rest)}))"
        else:
            some = f"({self._blocks(block, item, n_blocks, rest)})"
        return f"{item}{{{least}}} {some}" if least else some

    @staticmethod
    def _blocks(block: str, item: str, n_blocks: int, rest: int) -> str:
        last = f"{block}{{{n_blocks}}} {item}{{0,{rest}}}" if n_blocks else f"{item}{{0,{rest}}}"
        if n_blocks == 0:
            return last
        return f"{block}{{0,{n_blocks - 1}}} {item}{{0,{_BLOCK - 1}}} | {last}"


def used(bodies: Mapping[str, str], grammar: str) -> dict[str, str]:
    """The rules of `bodies` and the shared ones that a grammar needs, with those that they need."""
    needed: dict[str, str] = {}
    left = names_in(grammar)
    while left:
        name = left.pop()
        body = SHARED.get(name) or bodies.get(name)
        if name in needed or body is None:
            continue
        needed[name] = body
        left |= names_in(body) - needed.keys()
    return dict(sorted(needed.items()))


def names_in(body: str) -> set[str]:
    return set(_NAME.findall(_OPAQUE.sub(" ", body)))
