"""Patterns of ECMA-262, as JSON schemas have them, read into trees. Knows no grammar.

What no grammar can say (looking ahead, references back, boundaries of words) is refused with its name.
"""

from __future__ import annotations

from dataclasses import dataclass

from luce.supervisor.text.schemas.code_points import ALL, Ranges, complement, ranges
from luce.supervisor.text.schemas.notes import UnsupportedError

MAX_CHARACTERS = 4096
_MAX_DEPTH = 100
_DIGITS = ranges([(0x30, 0x39)])
_WORD = ranges([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
_BLANKS = ranges((ord(blank), ord(blank)) for blank in "\t\n\v\f\r \xa0\u1680\u2028\u2029\u202f\u205f\u3000")
_BLANKS = ranges([*_BLANKS, (0x2000, 0x200A)])
_PERHAPS_BLANK = ((0x1C, 0x1F), (0x85, 0x85), (0xFEFF, 0xFEFF))
"""To some readers of patterns: neither class of blanks matches them here."""
_CLASSES = {
    "d": _DIGITS,
    "D": complement(_DIGITS),
    "w": _WORD,
    "W": complement(_WORD),
    "s": _BLANKS,
    "S": complement(ranges([*_BLANKS, *_PERHAPS_BLANK])),
}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_DOT = complement(ranges([(10, 10), (13, 13), (0x2028, 0x2029)]))
_COUNTS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_LOOKS = {"=": "looking ahead", "!": "looking ahead", "<=": "looking back", "<!": "looking back"}


@dataclass(frozen=True, slots=True)
class Characters:
    """One of these."""

    points: Ranges


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    branches: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Anchor:
    is_start: bool


Node = Characters | Sequence | Choice | Repeat | Anchor
EMPTY = Sequence(())
ANYTHING = Repeat(Characters(ALL), 0, None)


def read_pattern(pattern: str) -> Node:
    """Raises UnsupportedError."""
    if len(pattern) > MAX_CHARACTERS:
        raise UnsupportedError(f"it has more than {MAX_CHARACTERS} characters")
    return _Reader(pattern).read()


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0

    def read(self) -> Node:
        node = self._choice()
        if self._at < len(self._text):
            raise UnsupportedError("its parentheses do not match")
        return node

    def _choice(self) -> Node:
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._repeated(self._atom()))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _repeated(self, part: Node) -> Node:
        while (counts := self._counts()) is not None:
            if isinstance(part, Anchor):
                raise UnsupportedError("it repeats an anchor")
            part = Repeat(part, *counts)
            self._take("?")  # lazy: the same texts
        return part

    def _counts(self) -> tuple[int, int | None] | None:
        for sign, known in _COUNTS.items():
            if self._take(sign):
                return known
        end = self._text.find("}", self._at)
        if self._peek() != "{" or end < 0:
            return None
        least, comma, most = self._text[self._at + 1 : end].partition(",")
        if not _is_count(least) or (most and not _is_count(most)):
            return None
        self._at = end + 1
        limit = int(least) if not comma else int(most) if most else None
        if limit is not None and limit < int(least):
            raise UnsupportedError("a repetition's limits contradict each other")
        return int(least), limit

    def _atom(self) -> Node:
        match character := self._next():
            case "(":
                return self._group()
            case "[":
                return Characters(self._class())
            case ".":
                return Characters(_DOT)
            case "^" | "$":
                return Anchor(character == "^")
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise UnsupportedError("it repeats nothing")
            case _:
                return _one(ord(character))

    def _group(self) -> Node:
        if self._take("?"):
            for sign, name in _LOOKS.items():
                if self._text.startswith(sign, self._at):
                    raise UnsupportedError(f"{name} ((?{sign}…)) has no grammar")
            if self._take("P<") or self._take("<"):
                self._at = self._text.find(">", self._at) + 1 or len(self._text)
            elif not self._take(":"):
                raise UnsupportedError("this kind of group has no grammar")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise UnsupportedError(f"its groups are more than {_MAX_DEPTH} deep")
        node = self._choice()
        if not self._take(")"):
            raise UnsupportedError("its parentheses do not match")
        self._depth -= 1
        return node

    def _escape(self) -> Node:
        character = self._peek()
        if character in _CLASSES:
            self._at += 1
            return Characters(_CLASSES[character])
        if character in {"A", "Z", "z"}:
            self._at += 1
            return Anchor(character == "A")
        if character in {"b", "B"}:
            raise UnsupportedError(f"a boundary (\\{character}) has no grammar")
        if character in {"k", *"123456789"}:
            raise UnsupportedError("a reference to a group has no grammar")
        return _one(self._escaped_code())

    def _escaped_code(self) -> int:
        character = self._next()
        match character:
            case "t" | "n" | "v" | "f" | "r":
                return _CONTROLS[character]
            case "0":
                return 0
            case "x":
                return self._hex(2)
            case "c":
                return ord(self._next()) % 32
            case "u":
                return self._unicode()
            case "p" | "P":
                raise UnsupportedError(f"classes of Unicode (\\{character}) have no grammar here")
        if character.isascii() and character.isalnum():
            raise UnsupportedError(f"\\{character} has no meaning")
        return ord(character)

    def _unicode(self) -> int:
        if self._take("{"):
            end = self._text.find("}", self._at)
            code = self._hex(max(0, end - self._at))
            self._at += 1
        else:
            code = self._hex(4)
            if 0xD800 <= code < 0xDC00 and self._take("\\u"):
                code = 0x10000 + ((code - 0xD800) << 10) + (self._hex(4) - 0xDC00)
        if 0xD800 <= code < 0xE000 or not 0 <= code <= 0x10FFFF:
            raise UnsupportedError("half a surrogate pair is no character")
        return code

    def _hex(self, n_digits: int) -> int:
        digits = self._text[self._at : self._at + n_digits]
        if not 0 < len(digits) == n_digits <= 8 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
            raise UnsupportedError("an escape is cut short")
        self._at += n_digits
        return int(digits, 16)

    def _class(self) -> Ranges:
        is_negated = self._take("^")
        pairs: list[tuple[int, int]] = []
        while not self._take("]"):
            first = self._class_member()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in {"]", ""}:
                self._at += 1
                last = self._class_member()
                if isinstance(first, tuple) or isinstance(last, tuple):
                    pairs.append((0x2D, 0x2D))
                    for member in (first, last):
                        pairs += member if isinstance(member, tuple) else [(member, member)]
                elif last < first:
                    raise UnsupportedError("a class's range is the wrong way round")
                else:
                    pairs.append((first, last))
            else:
                pairs += first if isinstance(first, tuple) else [(first, first)]
        points = complement(complement(ranges(pairs)))  # without surrogates
        return complement(points) if is_negated else points

    def _class_member(self) -> int | Ranges:
        character = self._next()
        if character != "\\":
            return ord(character)
        if self._peek() in _CLASSES:
            return _CLASSES[self._next()]
        return 8 if self._take("b") else self._escaped_code()

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise UnsupportedError("it is cut short")
        self._at += 1
        return self._text[self._at - 1]

    def _take(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True


def _one(code: int) -> Characters:
    if 0xD800 <= code < 0xE000:
        raise UnsupportedError("half a surrogate pair is no character")
    return Characters(((code, code),))


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
