"""compile_schema: a JSON schema as GBNF, what kinds of values it is for, and what of it is not enforced.

Each keyword is held to exactly, or left out for its place alone and told. What is accepted may be less than the schema
allows: properties come in its order, an object that lists some has no others, and characters have their usual spelling.
Knows no templates and no requests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from luce.supervisor.text.schemas.arrays import ArrayWriter
from luce.supervisor.text.schemas.code_points import json_literal, literal
from luce.supervisor.text.schemas.conjunctions import ALL_TYPES, Conjunction, Gatherer, Part
from luce.supervisor.text.schemas.documents import Place, Schema, SchemaDocument
from luce.supervisor.text.schemas.formats import FORMATS
from luce.supervisor.text.schemas.notes import Never, SchemaNote, UnsupportedError
from luce.supervisor.text.schemas.numbers import Bound, integer_rule, number_rule
from luce.supervisor.text.schemas.objects import ANY, ObjectWriter, Value
from luce.supervisor.text.schemas.other_strings import other_strings
from luce.supervisor.text.schemas.patterns import string_pattern
from luce.supervisor.text.schemas.rules import CHARACTER, MAX_REPEATS, STRING, VALUE, Rules, used
from luce.supervisor.text.schemas.validity import fits, same, type_of

_MAX_VALUES = 4000
_MAX_CHARACTERS = 1 << 20
_MAX_DEPTH = 60
_AT_THE_WHOLE = frozenset({"anyOf", "oneOf", "not", "if", "dependentRequired", "dependentSchemas", "dependencies"})
_AT_THE_WHOLE |= {"minProperties", "maxProperties", "patternProperties", "propertyNames"}
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_ORDER = ("object", "array", "string", "number", "integer", "boolean", "null")
Way = tuple[str, dict[str, Any]]
"""A rule's body, and the kinds of values it is for."""


@dataclass(frozen=True, slots=True)
class CompiledSchema:
    shape: Mapping[str, Any]
    """For llama.cpp: types, properties, and with each (`x-gbnf`) the rule that its values follow as JSON."""
    rules: Mapping[str, str]
    notes: Sequence[SchemaNote]
    in_rules: Mapping[str, Sequence[SchemaNote]]
    """What a rule alone enforces: lost where a template has calls written in another form than JSON."""
    bare: Mapping[str, str]
    """Of rules for texts as JSON those for the same texts as they are, without quotes (`x-bare` of a shape)."""

    @property
    def grammar(self) -> str:
        """Of texts that are the value and nothing else."""
        root = str(self.shape["x-gbnf"])
        rules = used(self.rules, root)
        return "\n".join([f"root ::= {root}", *(f"{name} ::= {body}" for name, body in rules.items())])


def compile_schema(schema: Schema, *, of_object: bool = False) -> CompiledSchema:
    """`of_object`: the value is an object in any case."""
    compiler = SchemaCompiler(schema)
    compiled = compiler.compile(of_object=of_object)
    if compiler.rules.n_characters <= _MAX_CHARACTERS:
        return compiled
    fallback = SchemaCompiler({"type": "object"} if of_object else True)
    fallback.tell(Place(schema), "", "the schema is too large for a grammar")
    return fallback.compile(of_object=of_object)


class SchemaCompiler:
    """Of one schema, once. Implements objects.Parts."""

    def __init__(self, schema: Schema) -> None:
        exact = json.dumps(schema, sort_keys=False, default=str).encode()
        self.rules = Rules(hashlib.blake2s(exact, digest_size=5).hexdigest())
        self._document = SchemaDocument(schema)
        self._gatherer = Gatherer(self._document, self.tell, self._are_apart)
        self._notes: dict[tuple[str, str], SchemaNote] = {}
        self._in_rules: dict[str, list[SchemaNote]] = {}
        self._bare: dict[str, str] = {}
        self._known: dict[frozenset[int], Value | Never] = {}
        self._begun: dict[frozenset[int], tuple[str, int]] = {}
        self._path: list[bool] = []  # whether each value on the way here has to be there
        self._n_choices = 0  # choices that are open on the way here
        self._infers = True
        self._n_left = _MAX_VALUES
        self._kept: list[Any] = []  # a schema's id is its name here

    def compile(self, *, of_object: bool) -> CompiledSchema:
        root = self._document.root
        places = [Place({"type": "object"}), root] if of_object else [root]
        value = self.settled(places, is_needed=True)
        assert value is not None
        if isinstance(root.schema, Mapping):
            for keyword in sorted(_AT_THE_WHOLE & root.schema.keys()):
                if ("", keyword) not in self._notes:
                    self._claim(value.rule, root, keyword)
        shape = _as_object(value) if of_object else value.shape
        return CompiledSchema(shape, self.rules.bodies, list(self._notes.values()), self._in_rules, self._bare)

    def tell(self, place: Place, keyword: str, reason: str) -> None:
        self._notes.setdefault((place.pointer, keyword), SchemaNote(place.pointer, keyword, reason))

    def settled(self, places: Sequence[Place], *, is_needed: bool) -> Value | None:
        """Where a schema contradicts itself, what it contradicts itself with is left out and told. Among several ways
        that is one way less."""
        try:
            return self._value(places, is_needed=is_needed)
        except Never as never:
            if never.is_meant or self._n_choices > 0:
                if is_needed and (len(self._path) > 0 or self._n_choices > 0):
                    raise
                if not is_needed:
                    return None
            self.tell(places[0], never.keyword, f"the schema contradicts itself: {never.reason}")
            return self._without_contradiction(places)

    def _without_contradiction(self, places: Sequence[Place]) -> Value:
        """Of the first type that is said."""
        for place in places:
            types = place.schema.get("type") if isinstance(place.schema, Mapping) else None
            if types is None:
                continue
            schema = {"type": types}
            self._kept.append(schema)
            try:
                return self._value([Place(schema)], is_needed=False)
            except Never:
                continue
        return ANY

    def listed(self, places: Sequence[Place]) -> Sequence[Any] | None:
        self._kept += [place.schema for place in places]
        notes = dict(self._notes)
        try:
            conjunction = self._gatherer.add(places, Conjunction(places))
            if conjunction.unions:
                return None
            return self._listed(conjunction, conjunction.types(infers=False))
        except Never:
            return []
        finally:
            self._notes = notes

    def _are_apart(self, places: Iterable[Place]) -> bool:
        """Whether no value is of all of them, for certain."""
        kept = self._infers, self._path, self._n_choices, dict(self._notes)
        self._infers, self._path, self._n_choices = False, [], 1
        known, self._known = self._known, {}
        try:
            self._value(list(places), is_needed=True)
        except Never:
            return True
        finally:
            self._infers, self._path, self._n_choices, self._notes = kept
            self._known = known
        return False

    def _value(self, places: Sequence[Place], *, is_needed: bool) -> Value:
        """Raises Never."""
        if any(place.schema is False for place in places):
            raise Never("false", "the schema is false", is_meant=True)
        key = frozenset(id(place.schema) for place in places if isinstance(place.schema, Mapping))
        if not key:
            return ANY
        if (known := self._known.get(key)) is not None:
            if isinstance(known, Never):
                raise known
            return known
        if key in self._begun:
            name, depth = self._begun[key]
            if is_needed and all(self._path[depth + 1 :]):
                raise Never("$ref", "it needs itself within itself, without end")
            return Value(name, {"x-gbnf": name})
        self._n_left -= 1
        if self._n_left < 0 or len(self._path) > _MAX_DEPTH:
            self.tell(places[0], "", "the schema is too large or too deep for a grammar")
            return ANY
        return self._begin(key, places, is_needed=is_needed)

    def _begin(self, key: frozenset[int], places: Sequence[Place], *, is_needed: bool) -> Value:
        name = self.rules.reserve()
        self._kept += [place.schema for place in places]
        self._begun[key] = name, len(self._path)
        self._path.append(is_needed)
        notes = dict(self._notes)
        try:
            ways = self._ways(self._gatherer.add(places, Conjunction(places)))
        except Never as never:
            self._known[key] = never
            self._notes = notes
            raise
        finally:
            self._path.pop()
            del self._begun[key]
        self.rules.define(name, " | ".join(body for body, _ in ways))
        value = Value(name, _shape(name, ways))
        self._known[key] = value
        return value

    def _ways(self, conjunction: Conjunction) -> list[Way]:
        """Raises Never."""
        if not conjunction.unions:
            return self._ways_by_type(conjunction)
        union, rest = conjunction.chosen()
        is_choice = len(union.branches) > 1
        ways: list[Way] = []
        last = Never(union.keyword, "no branch of it is left")
        self._n_choices += is_choice
        self._path.append(not is_choice)
        for branch in union.branches:
            notes = dict(self._notes)
            try:
                chosen = Conjunction(rest.origins, list(rest.parts), list(rest.unions), set(rest.seen))
                ways += self._ways(self._gatherer.add(branch, chosen))
            except Never:
                self._notes = notes
        self._path.pop()
        self._n_choices -= is_choice
        if not ways:
            raise last
        return list({body: (body, shape) for body, shape in ways}.values())

    def _ways_by_type(self, conjunction: Conjunction) -> list[Way]:
        types = conjunction.types(infers=self._infers)
        listed = self._listed(conjunction, types)
        if listed is not None:
            if not listed:
                raise Never(*_nothing_listed(conjunction))
            return self._ways_listed(conjunction, listed)
        if types == ALL_TYPES and not any(part.words for part in conjunction.parts):
            return [(VALUE, {"x-gbnf": VALUE})]
        if "number" in types:
            types -= {"integer"}
        ways, failed = [], None
        for name in _ORDER:
            if name not in types:
                continue
            try:
                body, shape = self._typed(name, conjunction)
                ways.append((body, {**shape, "x-gbnf": self.rules.item([body])}))
            except Never as never:
                failed = never
        if not ways:
            raise failed or Never("type", "no type is left")
        return ways

    def _listed(self, conjunction: Conjunction, types: frozenset[str]) -> list[Any] | None:
        """The values that `const` or `enum` leave, or true and false; None: they are not listed."""
        listed: list[Any] | None = None
        for part in conjunction.parts:
            if listed is None and "const" in part.words:
                listed = [part.words["const"]]
            elif listed is None and "enum" in part.words:
                listed = list(part.words["enum"])
        excluded = conjunction.excluded()
        if listed is None:
            if not types <= {"boolean", "null"}:
                return None
            listed = [True, False] * ("boolean" in types) + [None] * ("null" in types)
        return [
            value
            for number, value in enumerate(listed)
            if (type_of(value) in types)
            and not any(same(value, other) for other in [*listed[:number], *excluded])
            and all(self._fits(value, part) for part in conjunction.parts)
        ]

    def _fits(self, value: Any, part: Part) -> bool:
        unknown: set[str] = set()
        is_fitting = fits(value, part.place, self._document, unknown)
        for keyword in sorted(unknown if is_fitting else ()):
            self.tell(part.place, keyword, "values of const and enum are not held to it")
        return is_fitting

    def _ways_listed(self, conjunction: Conjunction, listed: Sequence[Any]) -> list[Way]:
        by_type: dict[str, list[str]] = {}
        for value in listed:
            by_type.setdefault(type_of(value), []).append(json_literal(value))
        ways = []
        for name, literals in by_type.items():
            # Of texts it needs a name: whether a template takes them in is seen by the rules that its grammar names.
            rule = self.rules.add(" | ".join(literals)) if name == "string" else self.rules.item(literals)
            shape = {"type": name, "x-gbnf": rule}
            if name == "string":
                texts = [value for value in listed if isinstance(value, str)]
                self._bare[rule] = shape["x-bare"] = self.rules.add(" | ".join(map(literal, texts)))
                for part in conjunction.parts:
                    for keyword in part.words.keys() & {"enum", "const"}:
                        self._claim(rule, part.place, keyword)
            ways.append((rule, shape))
        return ways

    def _typed(self, name: str, conjunction: Conjunction) -> Way:
        """Raises Never."""
        for value in conjunction.excluded():
            if (type_of(value) == name and name != "string") or (name == "number" and type_of(value) == "integer"):
                place = next(part.place for part in conjunction.parts)
                self.tell(place, "not", "to exclude single values of this type has no grammar")
        match name:
            case "object":
                return ObjectWriter(conjunction, self).write()
            case "array":
                return ArrayWriter(conjunction, self).write()
            case "string":
                return self._string(conjunction), {"type": "string"}
            case "integer" | "number":
                return self._number(name, conjunction), {"type": name}
            case _:
                return {"boolean": '"true" | "false"', "null": '"null"'}[name], {"type": name}

    def _string(self, conjunction: Conjunction) -> str:
        parts = conjunction.parts
        least_part = max(parts, key=lambda part: part.words.get("minLength", 0), default=None)
        least = 0 if least_part is None else least_part.words.get("minLength", 0)
        limits = [part.words["maxLength"] for part in parts if "maxLength" in part.words]
        most = min(limits) if limits else None
        if least_part is not None and least > MAX_REPEATS:
            self.tell(least_part.place, "minLength", f"a grammar takes no more than {MAX_REPEATS} repetitions")
            least = 0
        if most is not None and least > most:
            raise Never("minLength", "no text is so long and so short")
        rule = self._spelled(conjunction, least, most)
        if rule is None and (least or most is not None):
            rule = self.rules.add(f'"\\"" {self.rules.repeated(CHARACTER, least, most)} "\\""')
        if rule is None:
            return STRING
        for part in parts:
            for keyword in part.words.keys() & {"pattern", "minLength", "maxLength", "format"}:
                if keyword != "format" or part.words[keyword] in FORMATS:
                    self._claim(rule, part.place, keyword)
        return rule

    def _spelled(self, conjunction: Conjunction, least: int, most: int | None) -> str | None:
        """The rule for a pattern, a format or excluded texts, where there is one; the others are told."""
        rule = None
        for keyword in ("pattern", "format"):
            for part in conjunction.parts:
                pattern = part.words.get(keyword)
                if keyword == "format":
                    pattern = FORMATS.get(str(pattern))
                if pattern is None:
                    continue
                if rule is not None:
                    self.tell(part.place, keyword, "one pattern beside another has no grammar")
                    continue
                rule = self._pattern(part, keyword, pattern, least, most)
        excluded = [value for value in conjunction.excluded() if isinstance(value, str)]
        if excluded and (rule is not None or least or most is not None):
            self.tell(conjunction.parts[0].place, "not", "to exclude texts beside a pattern or a length has no grammar")
        elif excluded:
            rule = other_strings(self.rules, excluded)
        return rule

    def _pattern(self, part: Part, keyword: str, pattern: str, least: int, most: int | None) -> str | None:
        try:
            return string_pattern(self.rules, pattern, least, most)
        except UnsupportedError as error:
            if not least and most is None:
                self.tell(part.place, keyword, str(error))
                return None
        try:
            rule = string_pattern(self.rules, pattern)
        except UnsupportedError as error:
            self.tell(part.place, keyword, str(error))
            return None
        for length, is_asked in (("minLength", least > 0), ("maxLength", most is not None)):
            if is_asked:
                self.tell(part.place, length, f"beside this {keyword} it has no grammar")
        return rule

    def _number(self, name: str, conjunction: Conjunction) -> str:
        words = [part.words for part in conjunction.parts]
        least = _tightest(words, "minimum", "exclusiveMinimum", 1)
        most = _tightest(words, "maximum", "exclusiveMaximum", -1)
        divisors = [(part.place, part.words["multipleOf"]) for part in conjunction.parts if "multipleOf" in part.words]
        write = integer_rule if name == "integer" else number_rule
        for place, _ in divisors[1:]:
            self.tell(place, "multipleOf", "one divisor beside another has no grammar")
        if divisors:
            try:
                return self.rules.item([write(least, most, divisors[0][1], self.rules)])
            except UnsupportedError as error:
                self.tell(divisors[0][0], "multipleOf", str(error))
        try:
            return self.rules.item([write(least, most, None, self.rules)])
        except UnsupportedError as error:
            for part in conjunction.parts:
                for keyword in sorted(part.words.keys() & _BOUNDS):
                    self.tell(part.place, keyword, str(error))
        return self.rules.item([write(None, None, None, self.rules)])

    def _claim(self, rule: str, place: Place, keyword: str) -> None:
        reason = "this model's template has texts of calls written as they are, without a grammar"
        self._in_rules.setdefault(rule, []).append(SchemaNote(place.pointer, keyword, reason))


def _tightest(words: Iterable[Mapping[str, Any]], bound: str, excluded: str, sign: int) -> Bound | None:
    bounds = [
        Bound(value, name == excluded)
        for word in words
        for name in (bound, excluded)
        if isinstance(value := word.get(name), Decimal)
    ]
    return max(bounds, key=lambda one: (sign * one.value, one.is_excluded), default=None)


def _nothing_listed(conjunction: Conjunction) -> tuple[str, str]:
    keyword = next((name for part in conjunction.parts for name in ("const", "enum") if name in part.words), "type")
    return keyword, "none of its values is allowed by the other keywords"


def _shape(name: str, ways: Sequence[Way]) -> dict[str, Any]:
    if len(ways) == 1:
        return {**ways[0][1], "x-gbnf": name}
    return {"anyOf": [shape for _, shape in ways], "x-gbnf": name}


def _as_object(value: Value) -> dict[str, Any]:
    """One object of several: templates that write a call's arguments one by one know nothing of choices among them."""
    shapes = [shape for shape in value.shape.get("anyOf", [value.shape]) if shape.get("type") == "object"]
    properties: dict[str, list[Any]] = {}
    for shape in shapes:
        for name, part in shape.get("properties", {}).items():
            if part not in properties.setdefault(name, []):
                properties[name].append(part)
    required = [name for name in properties if all(name in shape.get("required", ()) for shape in shapes)]
    merged: dict[str, Any] = {"type": "object", "x-gbnf": value.rule}
    if properties:
        merged["properties"] = {
            name: parts[0] if len(parts) == 1 else {"anyOf": parts} for name, parts in properties.items()
        }
        merged["required"] = required
    return merged
