"""What of schemas is told as lost with a template's grammar: nothing where the grammar names all of their rules."""

from __future__ import annotations

from typing import Any

import pytest

from luce.supervisor.http.prompts.enforced_schemas import EnforcedSchemas, with_rules

TEXTS: list[dict[str, Any]] = [
    {"const": "circle"},
    {"enum": ["red", 2]},
    {"type": ["string", "null"], "enum": ["a", None]},
    {"type": "array", "items": {"const": "a"}, "maxItems": 2},
    {"type": "string", "pattern": "^a$"},
    {"type": "string", "maxLength": 0},
    {"type": "string", "not": {"const": "x"}},
]


@pytest.mark.parametrize("part", TEXTS)
@pytest.mark.parametrize("is_inner", [True, False])
def test_what_a_grammar_holds_is_not_told(part: dict[str, Any], *, is_inner: bool) -> None:
    schema = {"type": "object", "properties": {"k": part}, "required": ["k"]} if is_inner else part
    schemas = EnforcedSchemas()
    held = schemas.of_answer(schema, is_strict=True)
    _, lost = with_rules(f"root ::= {held.compiled.shape['x-gbnf']}", [held])
    assert schemas.tell([held], lost) == ()
