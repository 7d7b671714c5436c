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
from luce.supervisor.text.schemas import UnsupportedError, pattern_grammar

MAX_CHOICES = 1024


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
    is_strict: bool = False
    """What of the schema cannot be enforced is refused."""


def read_constraint(schema: Any, param: str, body: ConstrainedFields, *, is_strict: bool = False) -> Constraint:
    """`schema` came as `param`, `is_strict` with it, or is None. Empty texts ask for nothing. Raises ApiError."""
    asked: dict[str, Any] = {param: schema, "grammar": body.grammar or None}
    outputs = body.structured_outputs
    if outputs is not None:
        outputs = expect(outputs, dict, "structured_outputs", "an object")
    for kind in ("json", "regex", "choice", "grammar"):
        for name, value in (
            (f"guided_{kind}", getattr(body, f"guided_{kind}")),
            (f"structured_outputs.{kind}", (outputs or {}).get(kind)),
        ):
            asked[name] = None if value in ("", []) else value
    given = {name: value for name, value in asked.items() if value is not None}
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
            read = _schema(value, name, may_be_text="guided" in name)
            return Constraint(schema=read, param=name, is_strict=is_strict and name == param)


def read_response_format(value: Any, json_schema: Any) -> tuple[Any, str, bool]:
    """What `response_format` has for a schema, or llama-server's `json_schema` where there is none, where it stood, and
    whether it is strict; {} is any object. Raises ApiError."""
    wanted, param, is_strict = json_schema, "json_schema", False
    if value is not None:
        expect(value, dict, "response_format", "an object")
        match value.get("type"):
            case "text":
                pass
            case "json_object":
                if "schema" in value or wanted is None:
                    wanted, param = value.get("schema", {}), "response_format.schema"
            case "json_schema":
                wrapper = value.get("json_schema")
                if not isinstance(wrapper, dict):
                    name = "response_format.json_schema"
                    raise refusal(name, f"Missing required parameter: '{name}'.", "missing_required_parameter")
                wanted, param = wrapper.get("schema"), "response_format.json_schema.schema"
                wanted = {} if wanted is None else wanted
                is_strict = wrapper.get("strict") is True
            case _:
                text = "Invalid 'response_format.type': supported are 'text', 'json_object' and 'json_schema'."
                raise refusal("response_format.type", text)
    return wanted, param, is_strict


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
    pattern = expect(value, str, param, "a string")
    try:
        return pattern_grammar(pattern)
    except UnsupportedError as error:
        raise refusal(param, f"Invalid '{param}': {error}.") from error
