"""A tool's schema under templates whose calls are not JSON: what is held to, and what is told."""

from __future__ import annotations

from collections.abc import Callable

from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.http.prompts.enforced_schemas import AppliedNote
from luce.supervisor.http.prompts.rendering import Renderer
from luce.supervisor.text import TextModel
from tests.gbnf import Grammar

PARAMETERS = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["c", "f"]},
        "n": {"type": "integer", "minimum": 3},
        "p": {"type": "string", "pattern": "^a"},
    },
    "required": ["unit"],
}


def rendered(model: TextModel) -> tuple[Grammar, list[AppliedNote]]:
    tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": PARAMETERS}}
    prompt = ChatPrompt(messages=[{"role": "user", "content": "hi"}], tools=[tool])
    made = Renderer(model).render(prompt)
    try:
        assert made.constraint.grammar is not None
        assert made.chat is not None
        assert "gbnf" not in made.chat.prompt
        return Grammar.read(made.constraint.grammar), list(made.schema_notes)
    finally:
        made.close()


def test_arguments_between_tags_are_held_to_what_can_be_said(open_with: Callable[[str], TextModel]) -> None:
    grammar, notes = rendered(open_with("Qwen3-Coder"))

    def accepts(name: str, value: str, rule: str) -> bool:
        return grammar.accepts(f"<parameter={name}>\n{value}\n</parameter>\n", rule)

    assert accepts("unit", "c", "tool-0-arg-0")
    assert not accepts("unit", "k", "tool-0-arg-0")
    assert accepts("n", "3", "tool-0-arg-1")
    assert not accepts("n", "2", "tool-0-arg-1")
    assert [(note.source, note.note.pointer, note.note.keyword) for note in notes] == [
        ("f", "/properties/p", "pattern")
    ]


def test_arguments_as_json_are_held_to_all_of_it(model: TextModel) -> None:
    grammar, notes = rendered(model)
    assert notes == []
    rule = next(name for name in grammar.rules if name.startswith("tool-0-schema"))
    assert grammar.accepts('{"unit": "c", "n": 3, "p": "ab"}', rule)
    assert not grammar.accepts('{"unit": "c", "n": 3, "p": "b"}', rule)
