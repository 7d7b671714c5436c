"""A grammar in GBNF, read by itself: whether it accepts a text, and texts that it accepts, at random.

Not llama.cpp's reader, so that the two are no judges of themselves; what is no part of our grammars (tokens) it does
not read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_LAST = 0x10FFFF
_UNLIMITED = 1 << 30
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_HEX = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True, slots=True)
class Literal:
    text: str


@dataclass(frozen=True, slots=True)
class CharacterClass:
    ranges: tuple[tuple[int, int], ...]
    is_negated: bool = False

    def holds(self, character: str) -> bool:
        return any(first <= ord(character) <= last for first, last in self.ranges) is not self.is_negated


@dataclass(frozen=True, slots=True)
class Reference:
    name: str


@dataclass(frozen=True, slots=True)
class Repetition:
    item: Node
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    branches: tuple[Node, ...]


Node = Literal | CharacterClass | Reference | Repetition | Sequence | Choice
State = tuple[Node | None, Any]
"""What comes next, and the state behind it (None: nothing)."""
_EMPTY = Sequence(())


@dataclass(slots=True)
class Grammar:
    rules: dict[str, Node]
    _costs: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Grammar:
        rules = {}
        for line in text.splitlines():
            if line.strip():
                name, _, body = line.partition("::=")
                rules[name.strip()] = _Reader(body).read()
        grammar = cls(rules)
        grammar._find_costs()
        return grammar

    def accepts(self, text: str, root: str = "root") -> bool:
        """By the states that are left behind each character: what is still to come, as linked pairs."""
        states = self._closed([(self.rules[root], None)])
        for character in text:
            stepped: list[State] = []
            for node, rest in states:
                if isinstance(node, Literal) and node.text[0] == character:
                    stepped.append((Literal(node.text[1:]) if len(node.text) > 1 else _EMPTY, rest))
                elif isinstance(node, CharacterClass) and node.holds(character):
                    stepped.append((_EMPTY, rest))
            states = self._closed(stepped)
            if not states:
                return False
        return (None, None) in states

    def _closed(self, states: list[State]) -> set[State]:
        """As far as no character is needed; (None, None): nothing more has to come."""
        closed: set[State] = set()
        seen: set[State] = set()
        left = list(states)
        while left:
            state = left.pop()
            if state in seen:
                continue
            seen.add(state)
            node, rest = state
            if isinstance(node, CharacterClass) or (isinstance(node, Literal) and node.text):
                closed.add(state)
            elif isinstance(node, Literal) or node == _EMPTY:
                if rest is None:
                    closed.add((None, None))
                else:
                    left.append(rest)
            else:
                left += self._opened(node, rest)
        return closed

    def _opened(self, node: Node | None, rest: State | None) -> list[State]:
        match node:
            case Sequence((first, *others)):
                return [(first, (Sequence(tuple(others)), rest) if others else rest)]
            case Choice(branches):
                return [(branch, rest) for branch in branches]
            case Reference(name):
                return [(self.rules[name], rest)]
            case Repetition(item, least, most):
                fewer = _UNLIMITED if most == _UNLIMITED else most - 1
                once: list[State] = [(item, (Repetition(item, max(least - 1, 0), fewer), rest))]
                return [*(once if most > 0 else ()), *([(_EMPTY, rest)] if least == 0 else ())]
            case _:
                raise AssertionError(node)

    def sample(self, chance: random.Random, root: str = "root", max_steps: int = 400) -> str:
        """A text that it accepts; behind `max_steps` the shortest way to an end is taken."""
        written: list[str] = []
        left: list[Node] = [self.rules[root]]
        n_steps = 0
        while left:
            n_steps += 1
            node = left.pop()
            match node:
                case Literal(text):
                    written.append(text)
                case CharacterClass():
                    written.append(_one_of(node, chance))
                case Reference(name):
                    left.append(self.rules[name])
                case Sequence(items):
                    left += reversed(items)
                case Choice(branches):
                    least = min(map(self._cost, branches))
                    ways = [way for way in branches if n_steps < max_steps or self._cost(way) == least]
                    left.append(chance.choice([way for way in ways if self._cost(way) < _UNLIMITED]))
                case Repetition(item, least, most):
                    more = min(most, least + (chance.choice([0, 0, 1, 2, 3]) if n_steps < max_steps else 0))
                    left += [item] * (more if self._cost(item) < _UNLIMITED else 0)
        return "".join(written)

    def _find_costs(self) -> None:
        """The fewest steps to an end of each rule."""
        self._costs = dict.fromkeys(self.rules, _UNLIMITED)
        is_changed = True
        while is_changed:
            is_changed = False
            for name, node in self.rules.items():
                cost = min(_UNLIMITED, 1 + self._cost(node))
                if cost < self._costs[name]:
                    self._costs[name], is_changed = cost, True

    def _cost(self, node: Node) -> int:
        match node:
            case Reference(name):
                return self._costs[name]
            case Sequence(items):
                return min(_UNLIMITED, sum(map(self._cost, items)))
            case Choice(branches):
                return min(map(self._cost, branches))
            case Repetition(item, least, _):
                return min(_UNLIMITED, least * self._cost(item)) if least else 0
            case _:
                return 1


def _one_of(node: CharacterClass, chance: random.Random) -> str:
    first, last = chance.choice(node.ranges) if node.ranges else (0x20, 0x7E)
    candidates = [first, last, chance.randint(first, last)] if not node.is_negated else []
    candidates += [*map(ord, 'aZ0 "\\/-ä{}:,'), chance.randint(0x20, 0x2FF), chance.randint(0, _LAST)]
    chance.shuffle(candidates)
    return next(
        chr(code)
        for code in [*candidates, *range(0x20, 0x10000)]
        if node.holds(chr(code)) and not 0xD800 <= code < 0xE000
    )


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self) -> Node:
        node = self._choice()
        assert self._at == len(self._text), self._text[self._at :]
        return node

    def _choice(self) -> Node:
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def _sequence(self) -> Node:
        items: list[Node] = []
        while (character := self._peek()) and character not in "|)":
            items.append(self._repeated(self._item()))
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _repeated(self, item: Node) -> Node:
        for sign, (least, most) in {"*": (0, _UNLIMITED), "+": (1, _UNLIMITED), "?": (0, 1)}.items():
            if self._take(sign):
                return Repetition(item, least, most)
        if self._take("{"):
            end = self._text.index("}", self._at)
            first, comma, last = self._text[self._at : end].partition(",")
            self._at = end + 1
            return Repetition(item, int(first), int(last) if last else _UNLIMITED if comma else int(first))
        return item

    def _item(self) -> Node:
        if self._take("("):
            node = self._choice()
            assert self._take(")")
            return node
        if self._take('"'):
            return Literal("".join(self._characters('"')))
        if self._take("["):
            is_negated = self._text[self._at] == "^"
            self._at += is_negated
            return CharacterClass(tuple(self._class_ranges()), is_negated)
        begin = self._at
        while self._at < len(self._text) and (self._text[self._at].isalnum() or self._text[self._at] == "-"):
            self._at += 1
        assert self._at > begin, self._text[begin:]
        return Reference(self._text[begin : self._at])

    def _class_ranges(self) -> Iterator[tuple[int, int]]:
        while self._text[self._at] != "]":
            first = last = ord(self._character())
            if self._text[self._at] == "-" and self._text[self._at + 1] != "]":
                self._at += 1
                last = ord(self._character())
            yield first, last
        self._at += 1

    def _characters(self, end: str) -> Iterator[str]:
        while self._text[self._at] != end:
            yield self._character()
        self._at += 1

    def _character(self) -> str:
        character = self._text[self._at]
        self._at += 1
        if character != "\\":
            return character
        escape = self._text[self._at]
        self._at += 1
        if (n_digits := _HEX.get(escape)) is not None:
            self._at += n_digits
            return chr(int(self._text[self._at - n_digits : self._at], 16))
        return _ESCAPES.get(escape, escape)

    def _peek(self) -> str:
        while self._text[self._at : self._at + 1] == " ":
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        if self._peek() != text:
            return False
        self._at += 1
        return True
