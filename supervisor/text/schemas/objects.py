"""Objects as GBNF: their properties in the schema's order, then others where there may be any.

An object that lists properties has no others unless it says so, as in llama.cpp's grammars: a model is not to make
some up. Knows how properties follow each other; what they are, the compiler says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from luce.supervisor.text.schemas.code_points import json_literal
from luce.supervisor.text.schemas.conjunctions import Conjunction, Part
from luce.supervisor.text.schemas.documents import Place
from luce.supervisor.text.schemas.negation import OPEN
from luce.supervisor.text.schemas.notes import Never, UnsupportedError
from luce.supervisor.text.schemas.other_strings import other_strings
from luce.supervisor.text.schemas.patterns import string_pattern
from luce.supervisor.text.schemas.rules import OBJECT, SPACE, STRING, VALUE, Rules
from luce.supervisor.text.schemas.validity import matches

_MAX_COUNTED = 200
_COMMA = f'"," {SPACE}'


@dataclass(frozen=True, slots=True)
class Value:
    """A rule, by name or as something that can stand in a sequence, and what kinds of value it is for."""

    rule: str
    shape: Mapping[str, Any]


ANY = Value(VALUE, {"x-gbnf": VALUE})


class Parts(Protocol):
    """What the compiler does for those who write containers."""

    @property
    def rules(self) -> Rules: ...

    def tell(self, place: Place, keyword: str, reason: str) -> None: ...

    def settled(self, places: Sequence[Place], *, is_needed: bool) -> Value | None:
        """None: no value fits, and none is needed. Raises Never."""

    def listed(self, places: Sequence[Place]) -> Sequence[Any] | None:
        """All values, where they are few; None: they are not."""


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    value: Value
    is_required: bool


class ObjectWriter:
    def __init__(self, conjunction: Conjunction, parts: Parts) -> None:
        self._conjunction = conjunction
        self._schemas = [part for part in conjunction.parts if part.words.keys() & _WORDS]
        self._parts = parts
        self._rules = parts.rules
        self._required = {name for part in self._schemas for name in part.words.get("required", ())}
        self._keys = [part.place.at("propertyNames") for part in self._schemas if "propertyNames" in part.words]

    def write(self) -> tuple[str, dict[str, Any]]:
        """Raises Never."""
        if not self._schemas:
            return OBJECT, {"type": "object"}
        least, most = self._counts()
        names = self._names()
        members = self._members(names)
        extra = self._extra(names)
        if extra is not None and least > sum(member.is_required for member in members) + 1:
            place = next(part.place for part in self._schemas if part.words.get("minProperties") == least)
            self._parts.tell(place, "minProperties", "that other properties have different names has no grammar")
        chain = _Chain(self._rules, members, extra, least, most).write()
        shape: dict[str, Any] = {"type": "object"}
        if members:
            shape["properties"] = {member.name: member.value.shape for member in members}
            shape["required"] = [member.name for member in members if member.is_required]
        return f'"{{" {SPACE} {chain} "}}"', shape

    def _counts(self) -> tuple[int, int | None]:
        least = max((part.words.get("minProperties", 0) for part in self._schemas), default=0)
        limits = [part.words["maxProperties"] for part in self._schemas if "maxProperties" in part.words]
        most = min(limits) if limits else None
        for keyword, count in (("minProperties", least), ("maxProperties", most or 0)):
            if count > _MAX_COUNTED:
                place = next(part.place for part in self._schemas if keyword in part.words)
                if keyword == "minProperties":
                    self._parts.tell(place, keyword, f"it is above {_MAX_COUNTED}")
                    least = 0
                else:
                    most = _MAX_COUNTED  # fewer are allowed
        return least, most

    def _names(self) -> Sequence[str]:
        """All that are spoken of, those that there must not be among them."""
        names = dict.fromkeys(name for part in self._schemas for name in part.words.get("properties", ()))
        names |= dict.fromkeys(self._listed_keys() or ())
        names |= dict.fromkeys(name for part in self._schemas for name in part.words.get("required", ()))
        return list(names)

    def _members(self, names: Sequence[str]) -> list[Member]:
        members = []
        for name in names:
            is_required = name in self._required
            value = self._parts.settled(self._places_of(name), is_needed=is_required)
            if value is not None:
                members.append(Member(name, value, is_required))
        return members

    def _places_of(self, name: str) -> list[Place]:
        """The schemas that hold for the property."""
        places: list[Place] = []
        for part in self._schemas:
            words, found = part.words, []
            if name in words.get("properties", ()):
                found.append(part.place.at("properties", name))
            for pattern in words.get("patternProperties", ()):
                match matches(pattern, name):
                    case True:
                        found.append(part.place.at("patternProperties", pattern))
                    case None:
                        self._parts.tell(part.place, "patternProperties", f"{pattern[:80]!r} is no pattern")
            if not found and "additionalProperties" in words:
                found.append(part.place.at("additionalProperties"))
            places += found
        if self._keys and self._parts.listed([*self._keys, Place({"const": name})]) == []:
            places.append(Place(False))
        if not places:
            places += [part.place.at("unevaluatedProperties") for part in self._schemas if self._is_last(part)]
        return places

    def _is_last(self, part: Part) -> bool:
        """Whether its `unevaluatedProperties` is about all that the others leave."""
        if "unevaluatedProperties" not in part.words:
            return False
        if self._conjunction.is_led_by(part):
            return True
        self._parts.tell(part.place, "unevaluatedProperties", "it stands beside other schemas")
        return False

    def _listed_keys(self) -> Sequence[str] | None:
        return self._parts.listed([*self._keys, Place({"type": "string"})]) if self._keys else None

    def _extra(self, names: Sequence[str]) -> tuple[str, Value] | None:
        """The rule for the keys of other properties, and their values; None: there are none."""
        places: list[Place] = []
        for part in self._schemas:
            if "additionalProperties" in part.words:
                places.append(part.place.at("additionalProperties"))
            elif self._is_last(part):
                places.append(part.place.at("unevaluatedProperties"))
        patterns = [
            part.place.at("patternProperties", pattern)
            for part in self._schemas
            for pattern in part.words.get("patternProperties", ())
        ]
        if patterns:
            return self._patterned(patterns, places, names)
        lists = [part for part in self._schemas if "properties" in part.words and OPEN not in part.words]
        if any("additionalProperties" not in part.words for part in lists) or self._listed_keys() is not None:
            return None
        value = self._parts.settled(places, is_needed=False)
        if value is None:
            return None
        if not self._keys:
            return other_strings(self._rules, names) if names else STRING, value
        if names:
            return None  # keys that are none of these and follow a rule have no grammar: there are none
        keys = self._parts.settled([*self._keys, Place({"type": "string"})], is_needed=False)
        return None if keys is None else (keys.rule, value)

    def _patterned(
        self, patterns: Sequence[Place], places: Sequence[Place], names: Sequence[str]
    ) -> tuple[str, Value] | None:
        """Other keys are those that match: the others would have to match none."""
        pattern = patterns[0].pointer.rpartition("/")[2].replace("~1", "/").replace("~0", "~")
        if len(patterns) == 1 and not any(matches(pattern, name) is not False for name in names) and not self._keys:
            try:
                key = string_pattern(self._rules, pattern)
            except UnsupportedError as error:
                self._parts.tell(patterns[0], "patternProperties", str(error))
                return None if names else (STRING, ANY)
            value = self._parts.settled(patterns, is_needed=False)
            return None if value is None else (key, value)
        if not names and all(place.schema is not False for place in places):
            self._parts.tell(patterns[0], "patternProperties", "keys of several patterns have no grammar")
            return STRING, ANY
        return None


_WORDS = frozenset({"properties", "patternProperties", "additionalProperties", "propertyNames", "required"})
_WORDS |= {"minProperties", "maxProperties", "unevaluatedProperties"}


class _Chain:
    """Members one behind the other, counted as far as that matters."""

    def __init__(
        self, rules: Rules, members: Sequence[Member], extra: tuple[str, Value] | None, least: int, most: int | None
    ) -> None:
        self._rules = rules
        self._members = members
        self._extra = None if extra is None else f'{extra[0]} ":" {SPACE} {extra[1].rule}'
        self._least = least
        self._most = most
        self._cap = max(1, least, 0 if most is None else most)

    def write(self) -> str:
        """What stands between the braces, with the space before the second. Raises Never."""
        behind = [self._end(count) for count in range(self._cap + 1)]
        for member in reversed(self._members):
            behind = [self._member(member, count, behind) for count in range(self._cap + 1)]
        if behind[0] is None:
            raise Never("minProperties", "no object has so many of these properties")
        return behind[0]

    def _end(self, count: int) -> str | None:
        """Behind all that have names."""
        ends = SPACE if count > 0 else '""'
        if self._extra is None or (self._most is not None and count >= self._most):
            return ends if count >= self._least else None
        if self._most is None and count == self._cap:
            return self._rules.add(f"({_COMMA} {self._extra})* {SPACE}")
        later = self._end(min(count + 1, self._cap))
        ways = [ends] if count >= self._least else []
        if later is not None:
            ways.append(f"{_COMMA} {self._extra} {later}" if count else f"{self._extra} {later}")
        return self._rules.add(" | ".join(ways)) if ways else None

    def _member(self, member: Member, count: int, behind: Sequence[str | None]) -> str | None:
        """From this member on, behind `count` others."""
        key = json_literal(member.name)
        written = f'{key} ":" {SPACE} {member.value.rule}'
        if count:
            written = f"{_COMMA} {written}"
        following, skipped = behind[min(count + 1, self._cap)], behind[count]
        if count == self._most:
            return None if member.is_required else skipped
        if member.is_required:
            return None if following is None else self._rules.add(f"{written} {following}")
        if following == skipped and following is not None and count:
            return self._rules.add(f"({written})? {following}")
        ways = [f"{written} {following}"] if following is not None else []
        ways += [skipped] if skipped is not None else []
        return self._rules.add(" | ".join(ways)) if ways else None
