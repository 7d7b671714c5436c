"""Patterns as GBNF: of the texts that they match, or of the JSON strings that hold such texts.

Without anchors a pattern matches anywhere in a text, so that anything may stand around it.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf

from luce.supervisor.text.schemas.code_points import json_alternatives, raw_class
from luce.supervisor.text.schemas.notes import UnsupportedError
from luce.supervisor.text.schemas.pattern_syntax import (
    ANYTHING,
    EMPTY,
    Anchor,
    Characters,
    Choice,
    Node,
    Repeat,
    Sequence,
    read_pattern,
)
from luce.supervisor.text.schemas.rules import Rules, used

_MAX_BRANCHES = 64


def string_pattern(rules: Rules, pattern: str, least: int = 0, most: int | None = None) -> str:
    """The name of a rule for JSON strings that match, with `least` to `most` characters. Raises UnsupportedError."""
    node = _with_length(_whole(read_pattern(pattern)), least, most)
    return rules.add(f'"\\"" {_Writer(rules, in_json=True).write_part(node)} "\\""')


def text_pattern(rules: Rules, pattern: str) -> str:
    """The name of a rule for texts that match as a whole. Raises UnsupportedError."""
    node = read_pattern(pattern)
    branches = [_core(branch) for branch in _branches(node)]
    return rules.add(_Writer(rules, in_json=False).write(Choice(tuple(node for _, node, _ in branches))))


def pattern_grammar(pattern: str) -> str:
    """GBNF of texts that match as a whole. Raises UnsupportedError."""
    rules = Rules("pattern")
    root = text_pattern(rules, pattern)
    return "\n".join([f"root ::= {root}", *(f"{name} ::= {body}" for name, body in used(rules.bodies, root).items())])


def lengths(node: Node) -> tuple[int, int | None]:
    """The fewest and the most characters of what it matches."""
    match node:
        case Characters():
            return 1, 1
        case Anchor():
            return 0, 0
        case Sequence(parts):
            each = [lengths(part) for part in parts]
            most = [part for _, part in each if part is not None]
            return sum(least for least, _ in each), sum(most) if len(most) == len(each) else None
        case Choice(branches):
            each = [lengths(branch) for branch in branches]
            most = [branch for _, branch in each if branch is not None]
            return min(least for least, _ in each), max(most) if len(most) == len(each) else None
        case Repeat(part, least, most_times):
            fewest, longest = lengths(part)
            if longest == 0 or most_times == 0:
                return 0, 0
            return fewest * least, None if longest is None or most_times is None else longest * most_times


def _whole(node: Node) -> Node:
    """What matches all of a text in which `node` matches."""
    whole: list[Node] = []
    for starts, body, ends in map(_core, _branches(node)):
        whole.append(_flat(Sequence((*(() if starts else (ANYTHING,)), body, *(() if ends else (ANYTHING,))))))
    return whole[0] if len(whole) == 1 else Choice(tuple(whole))


def _branches(node: Node) -> ListOf[Node]:
    """The ways to match, apart where anchors of one hold for it alone."""
    if isinstance(node, Choice):
        branches = [way for branch in node.branches for way in _branches(branch)]
    elif isinstance(node, Sequence) and node.parts:
        parts = list(node.parts)
        ends = {0, len(parts) - 1}
        at = next(
            (at for at in sorted(ends) if isinstance(parts[at], Choice | Sequence) and _is_anchored(parts[at])), None
        )
        if at is None:
            return [node]
        branches = [
            way
            for branch in _branches(parts[at])
            for way in _branches(_flat(Sequence((*parts[:at], branch, *parts[at + 1 :]))))
        ]
    else:
        return [node]
    if len(branches) > _MAX_BRANCHES:
        raise UnsupportedError("its anchors stand in too many ways")
    return branches


def _flat(node: Sequence) -> Sequence:
    parts: list[Node] = []
    for part in node.parts:
        parts += part.parts if isinstance(part, Sequence) else [part]
    return Sequence(tuple(parts))


def _core(node: Node) -> tuple[bool, Node, bool]:
    """Whether it begins where the text does, what is between, and whether it ends where the text does."""
    parts = list(node.parts) if isinstance(node, Sequence) else [node]
    starts = ends = False
    while parts and parts[0] == Anchor(is_start=True):
        starts, parts = True, parts[1:]
    while parts and parts[-1] == Anchor(is_start=False):
        ends, parts = True, parts[:-1]
    if any(map(_is_anchored, parts)):
        raise UnsupportedError("an anchor within it has no grammar")
    return starts, Sequence(tuple(parts)) if parts else EMPTY, ends


def _is_anchored(node: Node) -> bool:
    match node:
        case Anchor():
            return True
        case Sequence(parts) | Choice(parts):
            return any(map(_is_anchored, parts))
        case Repeat(part):
            return _is_anchored(part)
        case _:
            return False


def _with_length(node: Node, least: int, most: int | None) -> Node:
    """The same with so many characters, where that can be said."""
    fewest, longest = lengths(node)
    if fewest >= least and (most is None or (longest is not None and longest <= most)):
        return node
    parts = [part for part in node.parts if lengths(part) != (0, 0)] if isinstance(node, Sequence) else [node]
    free = [at for at, part in enumerate(parts) if lengths(part)[0] != lengths(part)[1]]
    match [parts[at] for at in free]:
        case [Repeat(Characters() as part, begin, end)]:
            n_fixed = sum(lengths(part)[0] for at, part in enumerate(parts) if at not in free)
            begin = max(begin, least - n_fixed)
            limits = [limit for limit in (end, None if most is None else most - n_fixed) if limit is not None]
            if limits and min(limits) < begin:
                raise UnsupportedError("the pattern and the length contradict each other")
            parts[free[0]] = Repeat(part, begin, min(limits) if limits else None)
            return Sequence(tuple(parts))
    raise UnsupportedError("a length beside a pattern whose own is not limited in one place has no grammar")


class _Writer:
    def __init__(self, rules: Rules, *, in_json: bool) -> None:
        self._rules = rules
        self._in_json = in_json

    def write(self, node: Node) -> str:
        match node:
            case Characters(points):
                if not points:
                    raise UnsupportedError("a class without characters matches nothing")
                written = json_alternatives(points) if self._in_json else [raw_class(points)]
                return self._rules.item(written)
            case Sequence(parts):
                return " ".join(filter(None, map(self.write_part, parts))) or '""'
            case Choice(branches):
                return " | ".join(map(self.write, branches))
            case Repeat(part, least, most):
                if most == 0:
                    return '""'
                return self._rules.repeated(self._rules.item([self.write(part)]), least, most)
            case Anchor():
                raise AssertionError("anchors are taken off before")

    def write_part(self, node: Node) -> str:
        """As one of a sequence."""
        written = self.write(node)
        return f"({written})" if isinstance(node, Choice) else "" if written == '""' else written
