"""Arrays as GBNF: items that have schemas of their own, then those that share one, as many as are allowed.

Knows how items follow each other; what they are, the compiler says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from luce.supervisor.text.schemas.code_points import json_literal
from luce.supervisor.text.schemas.conjunctions import Conjunction
from luce.supervisor.text.schemas.documents import Place
from luce.supervisor.text.schemas.notes import Never
from luce.supervisor.text.schemas.objects import Parts, Value
from luce.supervisor.text.schemas.rules import ARRAY, MAX_REPEATS, SPACE, VALUE

_COMMA = f'"," {SPACE}'
_MAX_UNIQUE = 6
_WORDS = frozenset(
    {"items", "prefixItems", "additionalItems", "unevaluatedItems", "minItems", "maxItems", "uniqueItems", "contains"}
)


class ArrayWriter:
    def __init__(self, conjunction: Conjunction, parts: Parts) -> None:
        self._conjunction = conjunction
        self._schemas = [part for part in conjunction.parts if part.words.keys() & _WORDS]
        self._parts = parts
        self._rules = parts.rules

    def write(self) -> tuple[str, dict[str, Any]]:
        """Raises Never."""
        least, most = self._counts()
        first, least, most = self._first(least, most)
        rest = None
        if most is None or most > len(first):
            rest = self._parts.settled(self._places_of(None), is_needed=least > len(first))
            if rest is None:
                most = len(first)
        if most is not None and least > most:
            raise Never("minItems", "no array has so many items")
        shape: dict[str, Any] = {"type": "array"}
        if rest is not None and not first:
            shape["items"] = rest.shape
        special = self._special(first, rest, least, most)
        if special is not None:
            return special, shape
        if rest is not None and rest.rule == VALUE and not first and (least, most) == (0, None):
            return ARRAY, shape
        return f'"[" {SPACE} {self._sequence(first, rest, least, most)} {SPACE} "]"', shape

    def _counts(self) -> tuple[int, int | None]:
        least = max((part.words.get("minItems", 0) for part in self._schemas), default=0)
        limits = [part.words["maxItems"] for part in self._schemas if "maxItems" in part.words]
        for part in self._schemas:
            listed = part.words.get("items")
            if isinstance(listed, list) and "additionalItems" not in part.words:  # as many as are listed
                least = max(least, len(listed))
                limits.append(len(listed))
        if least > MAX_REPEATS:
            place = next(part.place for part in self._schemas if part.words.get("minItems") == least)
            self._parts.tell(place, "minItems", f"a grammar takes no more than {MAX_REPEATS} repetitions")
            least = 0
        return least, min(limits) if limits else None

    def _first(self, least: int, most: int | None) -> tuple[list[Value], int, int | None]:
        """Those that have schemas of their own."""
        n_first = max((len(self._prefix(part.words)[1]) for part in self._schemas), default=0)
        first: list[Value] = []
        while len(first) < n_first and (most is None or len(first) < most):
            value = self._parts.settled(self._places_of(len(first)), is_needed=len(first) < least)
            if value is None:
                return first, least, len(first)
            first.append(value)
        return first, least, most

    @staticmethod
    def _prefix(words: Any) -> tuple[str, list[Any]]:
        if isinstance(words.get("items"), list):  # up to draft 2019-09
            return "items", words["items"]
        return "prefixItems", words.get("prefixItems", [])

    def _places_of(self, number: int | None) -> list[Place]:
        """The schemas that hold for an item; None: for those behind."""
        places = []
        for part in self._schemas:
            keyword, first = self._prefix(part.words)
            rest = "additionalItems" if keyword == "items" else "items"
            if number is not None and number < len(first):
                places.append(part.place.at(keyword, number))
            elif rest in part.words:
                places.append(part.place.at(rest))
            elif "unevaluatedItems" in part.words:
                if not self._conjunction.is_led_by(part) or "contains" in part.words:
                    self._parts.tell(part.place, "unevaluatedItems", "it stands beside other schemas")
                else:
                    places.append(part.place.at("unevaluatedItems"))
        return places

    def _sequence(self, first: Sequence[Value], rest: Value | None, least: int, most: int | None) -> str:
        n_first = len(first)
        behind = ""
        if rest is not None:
            limit = None if most is None else most - n_first
            if n_first:
                behind = self._rules.repeated(self._rules.add(f"{_COMMA} {rest.rule}"), max(least - n_first, 0), limit)
            elif limit != 0:
                further = self._rules.add(f"{_COMMA} {rest.rule}")
                others = self._rules.repeated(further, max(least - 1, 0), None if limit is None else limit - 1)
                return f"{rest.rule} {others}" if least else f"({rest.rule} {others})?"
        for number in reversed(range(n_first)):
            item = first[number].rule if number == 0 else f"{_COMMA} {first[number].rule}"
            behind = self._rules.add(f"{item} {behind}".strip())
            behind = f"{behind}?" if number >= least else behind
        return behind

    def _special(self, first: Sequence[Value], rest: Value | None, least: int, most: int | None) -> str | None:
        """Where `uniqueItems` or `contains` hold; None: by the counts alone."""
        written = None
        for part in self._schemas:
            if part.words.get("uniqueItems") and (most is None or most > 1):
                values = None if first else self._parts.listed(self._places_of(None))
                if values is None or len(values) > _MAX_UNIQUE:
                    self._parts.tell(part.place, "uniqueItems", "that items differ has a grammar for few values only")
                else:
                    written = self._unique([json_literal(value) for value in values], least, most)
            if "contains" in part.words and part.words.get("minContains") != 0:
                counts = part.words.keys() & {"minContains", "maxContains"}
                if first or rest is None or counts or least > 1 or most is not None or written is not None:
                    self._parts.tell(part.place, "contains", "beside these keywords it has no grammar")
                    continue
                written = self._containing(part.place.at("contains"), rest)
            elif "maxContains" in part.words and "contains" in part.words:
                self._parts.tell(part.place, "maxContains", "it has no grammar")
        return written

    def _containing(self, wanted: Place, rest: Value) -> str:
        value = self._parts.settled([wanted, *self._places_of(None)], is_needed=True)
        assert value is not None
        before = self._rules.add(f"{rest.rule} {_COMMA}")
        behind = self._rules.add(f"{_COMMA} {rest.rule}")
        return f'"[" {SPACE} {before}* {value.rule} {behind}* {SPACE} "]"'

    def _unique(self, values: Sequence[str], least: int, most: int | None) -> str:
        """One rule for each set of values that may still come."""
        if least > len(values):
            raise Never("uniqueItems", "there are not so many different items")
        limit = len(values) if most is None else min(most, len(values))
        names: dict[frozenset[str], str] = {}

        def left(values_left: frozenset[str]) -> str:
            if values_left not in names:
                n_written = len(values) - len(values_left)
                ways = ['""'] if n_written >= least else []
                if n_written < limit:
                    comma = f"{_COMMA} " if n_written else ""
                    ways += [f"{comma}{value} {left(values_left - {value})}" for value in sorted(values_left)]
                names[values_left] = self._rules.add(" | ".join(ways))
            return names[values_left]

        return f'"[" {SPACE} {left(frozenset(values))} {SPACE} "]"'
