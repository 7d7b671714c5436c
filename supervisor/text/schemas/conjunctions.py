"""Conjunction: all schemas that hold for one value, with what each leads to: `$ref`, `allOf`, and ways to choose from.

Whatever stands beside `$ref`, `anyOf` or `oneOf` holds as well. Knows no grammar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from luce.supervisor.text.schemas.documents import Place, SchemaDocument
from luce.supervisor.text.schemas.keywords import read_keywords
from luce.supervisor.text.schemas.negation import EXCLUDED, OPEN, negated, without_property
from luce.supervisor.text.schemas.notes import Never

TellAt = Callable[[Place, str, str], None]
_MAX_EXCLUSIVE = 16
_OBJECT_WORDS = frozenset({"properties", "patternProperties", "additionalProperties", "required", "propertyNames"})
_OBJECT_WORDS |= {"minProperties", "maxProperties", "unevaluatedProperties"}
_ARRAY_WORDS = frozenset({"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains"})
_STRING_WORDS = frozenset({"pattern", "format", "minLength", "maxLength"})
_NUMBER_WORDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
ALL_TYPES = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})


@dataclass(frozen=True, slots=True)
class Part:
    place: Place
    words: Mapping[str, Any]
    """Its keywords; those that only lead to other schemas are gathered already."""


@dataclass(frozen=True, slots=True)
class Union:
    """One of these holds as well, each some schemas; where it stands."""

    place: Place
    keyword: str
    branches: Sequence[Sequence[Place]]


@dataclass(slots=True)
class Conjunction:
    origins: Sequence[Place]
    """What was asked for; the parts are what it leads to."""
    parts: list[Part] = field(default_factory=list)
    unions: list[Union] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)

    def chosen(self) -> tuple[Union, Conjunction]:
        """The first choice, and the rest."""
        union, *others = self.unions
        return union, Conjunction(self.origins, list(self.parts), others, set(self.seen))

    def is_led_by(self, part: Part) -> bool:
        """Whether all others are what it leads to, so that it may say what they leave over."""
        schema = part.place.schema
        origins = [place.schema for place in self.origins if not isinstance(place.schema, bool)]
        others = [origin for origin in origins if origin is not schema and origin.keys() - {"type"}]
        return (
            any(origin is schema for origin in origins)
            and not others
            and not any("not" in origin for origin in origins)
        )

    def excluded(self) -> list[Any]:
        return [value for part in self.parts for value in part.words.get(EXCLUDED, ())]

    def types(self, *, infers: bool) -> frozenset[str]:
        """Without a type, `infers`: what the keywords are about."""
        types = ALL_TYPES
        said = [part.words["type"] for part in self.parts if "type" in part.words]
        for part in said:
            types &= part
        if not types:
            raise Never("type", "no value is of all the types that are asked for")
        keywords = {keyword for part in self.parts for keyword in part.words}
        if said or not infers or keywords & {"const", "enum"}:
            return types
        about: set[str] = set()
        for words, names in (
            (_OBJECT_WORDS, {"object"}),
            (_ARRAY_WORDS, {"array"}),
            (_STRING_WORDS, {"string"}),
            (_NUMBER_WORDS, {"integer", "number"}),
        ):
            if keywords & words:
                about |= names
        return frozenset(about) or types


class Gatherer:
    """Of one document."""

    def __init__(self, document: SchemaDocument, tell: TellAt, are_apart: Callable[[Iterable[Place]], bool]) -> None:
        """`are_apart`: whether no value is of all these schemas."""
        self._document = document
        self._tell_caller = tell
        self._ask_apart = are_apart
        self._captured: list[tuple[Place, str, str]] | None = None
        self._told: dict[tuple[int, str], list[tuple[Place, str, str]]] = {}
        self._made: dict[tuple[int, str], list[Sequence[Place]]] = {}
        self._words: dict[int, dict[str, Any]] = {}
        self._kept: list[Any] = []  # a schema's id is its name here

    def add(self, places: Iterable[Place], to: Conjunction) -> Conjunction:
        """Raises Never."""
        left = list(places)
        while left:
            place = left.pop(0)
            schema = place.schema
            if isinstance(schema, bool):
                if not schema:
                    raise Never("false", "the schema is false", is_meant=True)
                continue
            if id(schema) in to.seen:
                continue
            to.seen.add(id(schema))
            words = dict(self._read(place))
            left[:0] = self._led_to(place, words)
            to.unions += self._unions(place, words)
            if words:
                to.parts.append(Part(place, words))
        return to

    def _read(self, place: Place) -> Mapping[str, Any]:
        schema = place.schema
        assert isinstance(schema, Mapping)
        if id(schema) not in self._words:
            self._kept.append(schema)
            told: list[tuple[Place, str, str]] = []
            words = read_keywords(schema, lambda keyword, reason: told.append((place, keyword, reason)))
            words |= {keyword: schema[keyword] for keyword in (OPEN, EXCLUDED) if schema.get(keyword)}
            self._words[id(schema)] = words
            self._told[id(schema), ""] = told
        for note in self._told[id(schema), ""]:
            self._tell(*note)
        return self._words[id(schema)]

    def _tell(self, place: Place, keyword: str, reason: str) -> None:
        if self._captured is None:
            self._tell_caller(place, keyword, reason)
        else:
            self._captured.append((place, keyword, reason))

    def _led_to(self, place: Place, words: dict[str, Any]) -> list[Place]:
        """Schemas that hold as well."""
        found: list[Place] = []
        if (reference := words.pop("$ref", None)) is not None:
            if isinstance(place.schema, Mapping) and "$id" in place.schema:
                self._tell(place, "$ref", "what it starts from beside `$id` is another place in each draft")
            target = self._document.find(reference, place.base)
            if target is None:
                self._tell(place, "$ref", f"{reference[:200]!r} is not in the schema")
            else:
                found.append(target)
        found += [place.at("allOf", number) for number in range(len(words.pop("allOf", ())))]
        if (inner := words.pop("not", None)) is not None:
            other = self._other(inner)
            if other is None:
                self._tell(place, "not", "what it allows cannot be said exactly")
            else:
                found.append(replace(place, schema=other))
        return found

    def _other(self, schema: Any) -> Any:
        """`negated`, the same object each time."""
        key = id(schema), "not"
        if key not in self._made:
            other = negated(schema)
            self._kept += [schema, other]
            self._made[key] = [[Place(other)]] if other is not None else []
        return next((branch[0].schema for branch in self._made[key]), None)

    def _unions(self, place: Place, words: dict[str, Any]) -> list[Union]:
        unions = []
        if (listed := words.pop("anyOf", None)) is not None:
            unions.append(Union(place, "anyOf", [[place.at("anyOf", number)] for number in range(len(listed))]))
        if (listed := words.pop("oneOf", None)) is not None:
            unions.append(
                Union(place, "oneOf", self._remembered(place, "oneOf", lambda: self._exclusive(place, listed)))
            )
        if "if" in words:
            condition, then, otherwise = words.pop("if"), words.pop("then", True), words.pop("else", True)
            branches = self._remembered(place, "if", lambda: self._conditional(place, condition, then, otherwise))
            if branches:
                unions.append(Union(place, "if", branches))
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, needed in words.pop(keyword, {}).items():
                branches = self._remembered(place, f"{keyword}/{name}", lambda: self._dependent(place, name, needed))  # noqa: B023
                unions.append(Union(place, keyword, branches))
        return unions

    def _remembered(self, place: Place, what: str, make: Callable[[], list[Sequence[Place]]]) -> list[Sequence[Place]]:
        """Made once, and told each time: what was told first may have been of a branch that was given up."""
        key = id(place.schema), what
        if key not in self._made:
            self._made[key], self._told[key] = [], []  # asked for again while it is made: without what it would say
            before, self._captured = self._captured, []
            self._made[key] = make()
            self._told[key], self._captured = self._captured, before
            self._kept += [branch.schema for branches in self._made[key] for branch in branches]
        for note in self._told[key]:
            self._tell(*note)
        return self._made[key]

    def _are_apart(self, places: Iterable[Place]) -> bool:
        before, self._captured = self._captured, None  # what a trial tells is its caller's to forget
        try:
            return self._ask_apart(places)
        finally:
            self._captured = before

    def _conditional(self, place: Place, condition: Any, then: Any, otherwise: Any) -> list[Sequence[Place]]:
        other = self._other(condition)
        if other is None:
            self._tell(place, "if", "what does not meet its condition cannot be said exactly")
            return []
        met, unmet = replace(place, schema=condition), replace(place, schema=other)
        if isinstance(condition, Mapping) and "properties" in condition:
            met = replace(place, schema={**condition, OPEN: True})
        return [[met, replace(place, schema=_opened(then))], [unmet, replace(place, schema=_opened(otherwise))]]

    @staticmethod
    def _dependent(place: Place, name: str, needed: Any) -> list[Sequence[Place]]:
        present: list[Place] = [replace(place, schema={"required": [name]})]
        present.append(replace(place, schema={"required": needed} if isinstance(needed, list) else _opened(needed)))
        return [[replace(place, schema=without_property(name))], present]

    def _exclusive(self, place: Place, listed: Sequence[Any]) -> list[Sequence[Place]]:
        """Branches of which no value is of two."""
        branches = [place.at("oneOf", number) for number in range(len(listed))]
        exclusive: list[Sequence[Place]] = []
        is_told = len(branches) > _MAX_EXCLUSIVE
        for number, branch in enumerate(branches):
            holding = [branch]
            for at, other in enumerate(branches):
                if is_told or at == number or self._are_apart([branch, other]):
                    continue
                absent = self._other(other.schema)
                is_told = absent is None
                if absent is not None:
                    holding.append(replace(other, schema=absent))
            exclusive.append(holding)
        if is_told:
            self._tell(place, "oneOf", "whether its branches exclude each other is not known: it is taken as anyOf")
            return [[branch] for branch in branches]
        return exclusive


def _opened(schema: Any) -> Any:
    """A part of a condition names properties without saying that there are no others."""
    return {**schema, OPEN: True} if isinstance(schema, Mapping) and "properties" in schema else schema
