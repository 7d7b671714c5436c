"""What an answer has to follow: a JSON schema or a grammar, from the many fields that ask for one: OpenAI's formats,
llama-server's `json_schema` and `grammar`, vLLM's `guided_…` and `structured_outputs`.

Must not know messages or prompts. One of them can be asked for; another beside it is refused with its name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from luce.supervisor.http.openai_shared.fields import expect, refusal
from luce.supervisor.text import SchemaError, schema_to_grammar

MAX_CHOICES = 1024
MAX_PATTERN_CHARACTERS = 4096
_QUOTE = r'"\""'
_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_", "s": r" \t\n\r"}


class ConstrainedFields(BaseModel):
    grammar: str | None = None
    """llama-server's: GBNF that the answer follows."""
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: Any = None
    guided_grammar: str | None = None
    structured_outputs: Any = None


@dataclass(frozen=True, slots=True)
class Constraint:
    """At most one of both."""

    schema: Mapping[str, Any] | None = None
    grammar: str | None = None
    param: str = ""
    """Which field asks for it."""


def read_constraint(schema: Any, param: str, body: ConstrainedFields) -> Constraint:
    """`schema` came as `param`, or is None. Empty texts ask for nothing. Raises ApiError."""
    asked: dict[str, Any] = {param: schema, "grammar": body.grammar or None}
    outputs = body.structured_outputs
    if outputs is not None:
        outputs = expect(outputs, dict, "structured_outputs", "an object")
    for kind in ("json", "regex", "choice", "grammar"):
        asked[f"guided_{kind}"] = getattr(body, f"guided_{kind}")
        asked[f"structured_outputs.{kind}"] = (outputs or {}).get(kind)
    given = {name: value for name, value in asked.items() if value is not None and value not in ("", [])}
    if not given:
        return Constraint()
    (name, value), *others = given.items()
    if others:
        raise refusal(others[0][0], f"'{others[0][0]}' cannot be used together with '{name}'.")
    match name.rpartition("guided_")[2].rpartition(".")[2]:
        case "regex":
            return Constraint(grammar=_pattern_grammar(value, name), param=name)
        case "choice":
            return Constraint(grammar=_choice_grammar(value, name), param=name)
        case "grammar":
            return Constraint(grammar=expect(value, str, name, "a grammar as a string"), param=name)
        case _:
            return Constraint(schema=_schema(value, name, may_be_text="guided" in name), param=name)


def _schema(value: Any, param: str, *, may_be_text: bool) -> Mapping[str, Any]:
    if may_be_text and isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise refusal(param, f"Invalid '{param}': the text is not JSON.") from None
    return expect(value, dict, param, "a JSON schema as an object")


def _choice_grammar(value: Any, param: str) -> str:
    texts = expect(value, list, param, "a list of strings")
    if not texts or len(texts) > MAX_CHOICES or not all(isinstance(text, str) and text for text in texts):
        raise refusal(param, f"Invalid '{param}': expected 1 to {MAX_CHOICES} strings that are not empty.")
    return "root ::= " + " | ".join(map(_literal, texts))


def _literal(text: str) -> str:
    """As GBNF: what is no printable ASCII is written by its number."""
    plain = "".join(char if " " <= char <= "~" and char not in '"\\' else f"\\U{ord(char):08X}" for char in text)
    return f'"{plain}"'


def _pattern_grammar(value: Any, param: str) -> str:
    """llama.cpp makes grammars of patterns in schemas, of strings in quotes: these come off."""
    pattern = expect(value, str, param, "a string")
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise refusal(param, f"Invalid '{param}': at most {MAX_PATTERN_CHARACTERS} characters.")
    inner = _with_plain_classes(pattern.removeprefix("^").removesuffix("$"))
    try:
        grammar = schema_to_grammar({"type": "string", "pattern": f"^{inner}$"})
    except SchemaError as error:
        raise refusal(param, f"Invalid '{param}': {error}") from error
    lines = grammar.split("\n")
    for number, line in enumerate(lines):
        rule = line.removeprefix("root ::= ")
        if rule != line and rule.startswith(_QUOTE) and rule.endswith(_QUOTE):
            lines[number] = f"root ::= {rule.removeprefix(_QUOTE).removesuffix(_QUOTE).strip()}"
            return "\n".join(lines)
    text = f"Invalid '{param}': groups, classes, repetitions and alternatives are supported, other things are not."
    raise refusal(param, text)


def _with_plain_classes(pattern: str) -> str:
    r"""Without \d, \w and \s, which llama.cpp does not know."""
    parts: list[str] = []
    is_in_class = False
    characters = iter(pattern)
    for character in characters:
        if character == "\\":
            escaped = next(characters, "")
            members = _CLASSES.get(escaped)
            parts.append(f"\\{escaped}" if members is None else members if is_in_class else f"[{members}]")
            continue
        is_in_class = character != "]" if is_in_class else character == "["
        parts.append(character)
    return "".join(parts)
