"""Patterns: the JSON strings that they let through are JSON, and match."""

from __future__ import annotations

import json
import random
import re

import pytest

from luce.supervisor.text.schemas import UnsupportedError, compile_schema, pattern_grammar
from tests.gbnf import Grammar

TEXTS = [
    "",
    "a",
    "b",
    "ab",
    "aa",
    'a"b',
    "a\\",
    "a\nb",
    "\t",
    "1",
    "12",
    "1-2",
    "é",
    "aé",
    "x y",
    "ab-12",
    "A_9",
    "€uro",
    "aéé",
    "日",
    "日本",
    "a..",
]
PATTERNS = [
    "a", "^a", "a$", "^a$", "^.*$", ".", r"\d", r"^\d+$", r"^\w+-\d{2,}$", r"\s", r"^\S*$", r"^[^a]+$", r"^[^\"]*$",
    "^(a|b)+$", "a|^b", "^(?:ab|a)$", "(^a|b$)", r"^\!?a", r"^a\.?b$", "^a{2}$", "^é+$", r"[\\\"]", "^$",
    r"^\x61\u0062$",
    "^[a-z]{1,3}?$", r"^[\d\w-]+$", "^(?<name>a+)b*$", "", r"^\W$", r"[\s\d]", "^aé+$", "^日本?$", r"^a\.{2}$",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_string_passes_if_it_matches(pattern: str) -> None:
    compiled = compile_schema({"type": "string", "pattern": pattern})
    assert compiled.notes == []
    grammar = Grammar.read(compiled.grammar)
    spelled = pattern.replace("(?<", "(?P<").replace("$", r"\Z")
    meaning = re.compile(spelled, re.ASCII)  # \d and \w are ASCII's there, \s is not
    for text in TEXTS:
        assert grammar.accepts(json.dumps(text, ensure_ascii=False)) == bool(meaning.search(text)), text
    chance = random.Random(pattern)
    for _ in range(20):
        text = json.loads(grammar.sample(chance))
        assert meaning.search(text) or re.search(spelled, text)


@pytest.mark.parametrize(
    "pattern", ["(a", "a)", "[a", "*", "a{3,1}", "(?=a)", "(?i)a", r"\1", r"\ba", "a^b", "\\", r"\ud800"]
)
def test_what_has_no_grammar_is_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedError):
        pattern_grammar(pattern)


def test_a_text_of_its_own_has_no_quotes() -> None:
    grammar = Grammar.read(pattern_grammar(r"^\d{3}-[a-z]+|\"x$"))
    assert [grammar.accepts(text) for text in ("123-abc", '"x', '"123-abc"', "12-a")] == [True, True, False, False]


def test_a_length_beside_a_pattern_is_held_or_told() -> None:
    held = compile_schema({"pattern": "^a[0-9]*$", "minLength": 2, "maxLength": 3})
    assert held.notes == []
    grammar = Grammar.read(held.grammar)
    assert [grammar.accepts(f'"{text}"') for text in ("a", "a1", "a12", "a123")] == [False, True, True, False]
    told = compile_schema({"pattern": "^a*b*$", "maxLength": 3})
    assert [note.keyword for note in told.notes] == ["maxLength"]
