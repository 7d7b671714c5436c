"""EnforcedSchemas: the schemas of requests as grammars, each made once; and what of a request's is not enforced.

What is not is logged once for each schema, told in the answer, and refused where the client asked for strictness. Knows
no template: of what a template takes from a schema it is told by the grammar that is left.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.http.prompts.conversations import exact_bytes
from luce.supervisor.text.schemas import CompiledSchema, SchemaNote, compile_schema, is_type, rules_used

logger = logging.getLogger("luce.http.answering")

RESPONSE_FORMAT = "response_format"
"""What notes call the schema of the whole answer, in every dialect."""
_BARE_TEXTS = {"xml-arg-string": r'"\n</parameter>\n"'}
"""llama.cpp's rules for the rest of an argument that is any text, and what ends it."""
_MAX_KNOWN = 512
_MAX_TOLD = 4096


@dataclass(frozen=True, slots=True)
class AppliedNote:
    """A keyword that does not hold this answer."""

    source: str
    """The tool's name, or RESPONSE_FORMAT."""
    note: SchemaNote

    def as_json(self) -> dict[str, str]:
        """As answers tell it."""
        note = self.note
        return {"tool": self.source, "pointer": note.pointer, "keyword": note.keyword, "reason": note.reason}

    def __str__(self) -> str:
        place = self.note.pointer or "the whole schema"
        return f"{self.source}: {self.note.keyword or 'schema'} at {place}: {self.note.reason}"


@dataclass(frozen=True, slots=True)
class EnforcedSchema:
    source: str
    compiled: CompiledSchema
    is_strict: bool = False


class EnforcedSchemas:
    """The latest used. Any thread may use it."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[bytes, bool], CompiledSchema] = OrderedDict()
        self._told: OrderedDict[AppliedNote, None] = OrderedDict()
        self._lock = threading.Lock()

    def compiled(self, schema: Mapping[str, Any], *, of_object: bool) -> CompiledSchema:
        exact = exact_bytes(schema)
        key = (b"" if exact is None else exact, of_object)
        with self._lock:
            found = self._known.pop(key, None) if exact is not None else None
        if found is None:
            found = compile_schema(schema, of_object=of_object)
        with self._lock:
            self._known[key] = found
            while len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return found

    def of_tools(self, tools: Iterable[Mapping[str, Any]]) -> tuple[EnforcedSchema, ...]:
        """Of functions as ChatPrompt.tools has them."""
        functions = [tool.get("function") or {} for tool in tools]
        return tuple(
            EnforcedSchema(
                str(function.get("name")),
                self.compiled(function.get("parameters") or {}, of_object=True),
                function.get("strict") is True,
            )
            for function in functions
        )

    def of_answer(self, schema: Mapping[str, Any], *, is_strict: bool) -> EnforcedSchema:
        """{}: any object. Raises ApiError where nothing of it means anything: of an answer nothing else is asked."""
        if "type" in schema and not is_type(schema["type"]):
            text = f"the JSON schema has no grammar: {str(schema['type'])[:80]!r} is no type"
            raise ApiError(ErrorKind.INVALID, "bad_schema", text, param=RESPONSE_FORMAT)
        return EnforcedSchema(RESPONSE_FORMAT, self.compiled(schema, of_object=not schema), is_strict)

    def tell(self, schemas: Sequence[EnforcedSchema], lost: Sequence[AppliedNote] = ()) -> tuple[AppliedNote, ...]:
        """What of these is not enforced; `lost`: with this template. Raises ApiError where a client wants all of it."""
        notes = [AppliedNote(schema.source, note) for schema in schemas for note in schema.compiled.notes]
        notes += [note for note in lost if note not in notes]
        for schema in schemas:
            own = [note for note in notes if note.source == schema.source]
            if schema.is_strict and own:
                raise _refusal(schema, own)
        for note in notes:
            if self._is_new(note):
                logger.warning("a schema's keyword is not enforced: %s", note)
        return tuple(notes)

    def _is_new(self, note: AppliedNote) -> bool:
        with self._lock:
            is_new = note not in self._told
            self._told[note] = None
            while len(self._told) > _MAX_TOLD:
                self._told.popitem(last=False)
        return is_new


def with_rules(grammar: str, schemas: Sequence[EnforcedSchema]) -> tuple[str, tuple[AppliedNote, ...]]:
    """A template's grammar with the rules that its schemas refer to, and what they enforce that it does not take."""
    grammar = _with_bare_texts(grammar, schemas)
    bodies = {name: body for schema in schemas for name, body in schema.compiled.rules.items()}
    needed = rules_used(bodies, grammar)
    if needed:
        grammar = "\n".join([grammar.rstrip("\n"), *(f"{name} ::= {body}" for name, body in needed.items()), ""])
    lost = [
        AppliedNote(schema.source, note)
        for schema in schemas
        for rule, notes in schema.compiled.in_rules.items()
        if rule not in needed and schema.compiled.bare.get(rule) not in needed
        for note in notes
    ]
    return grammar, tuple(dict.fromkeys(lost))


def _with_bare_texts(grammar: str, schemas: Sequence[EnforcedSchema]) -> str:
    """Where a format has arguments written as they are, those whose texts the schema lists are one of these."""
    for number, schema in enumerate(schemas):
        for index, part in enumerate(schema.compiled.shape.get("properties", {}).values()):
            if (bare := part.get("x-bare")) is None:
                continue
            for rule, end in _BARE_TEXTS.items():
                head = rf"^(tool-{number}-arg-{index} ::= .*) {rule}$"
                grammar = re.sub(head, lambda found: f"{found[1]} {bare} {end}", grammar, flags=re.MULTILINE)  # noqa: B023
    return grammar


def callable_schemas(prompt: ChatPrompt, schemas: Sequence[EnforcedSchema]) -> Sequence[EnforcedSchema]:
    """Those of the tools that this answer may call."""
    if not prompt.may_call:
        return ()
    chosen = prompt.tool_choice.removeprefix("function:") if prompt.tool_choice.startswith("function:") else None
    return [schema for schema in schemas if chosen in {None, schema.source}]


def _refusal(schema: EnforcedSchema, notes: Sequence[AppliedNote]) -> ApiError:
    is_tool = schema.source != RESPONSE_FORMAT
    what = f"Invalid schema for function '{schema.source:.256}'" if is_tool else "Invalid schema for response_format"
    told = "; ".join(
        f"'{note.note.keyword}' at '{note.note.pointer}' cannot be enforced: {note.note.reason}" for note in notes[:8]
    )
    text = f"{what}: {told}. It is asked for strictly: without strict it is left out and told."
    return ApiError(ErrorKind.INVALID, "schema_not_enforced", text, param="tools" if is_tool else RESPONSE_FORMAT)
