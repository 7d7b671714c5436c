"""Tools and a schema in one request: the grammar takes calls and answers by the schema, and both are read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from luce.supervisor.text import AnswerParser, TextModel

from .conftest import OpenWith
from .test_answers import HELLO, SELF_DESCRIBING, TOOLS, written_by
from .text_models import added_up

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"lines": {"type": "integer"}, "name": {"type": "string"}},
    "required": ["lines", "name"],
    "additionalProperties": False,
}
BY_SCHEMA = '{"lines": 3, "name": "<b>{read_file}"}'
ARGUMENTS = {"path": "a.py", "lines": 3}
# Where an answer by a schema stands in more than the template puts around an answer.
FENCED = {"mistralai-Ministral-3-14B-Reasoning-2512": "```json\n%s\n```"}


def read(chat: Any, text: str, size: int) -> Any:
    data = text.encode()
    with AnswerParser(chat) as parser:
        deltas = [delta for at in range(0, len(data), size) for delta in parser.feed_text(data[at : at + size])]
        finished = parser.finish()
    assert finished.consistent
    assert added_up([*deltas, *finished.deltas]) == finished.message
    return finished.message


@pytest.mark.parametrize("name", SELF_DESCRIBING)
def test_both_are_read(open_with: OpenWith, name: str) -> None:
    model = open_with(name)
    chat = model.render(HELLO, tools=TOOLS, json_schema=SCHEMA)
    assert not chat.grammar_lazy
    assert chat.grammar
    offered = model.render(HELLO, tools=TOOLS)
    assert chat.tokens == offered.tokens
    call = {"name": "read_file", "arguments": json.dumps(ARGUMENTS)}
    calls = [{"id": "call00001", "type": "function", "function": call}]
    called = written_by(model, offered, {"role": "assistant", "content": "", "tool_calls": calls}, tools=TOOLS)
    said = written_by(model, offered, {"role": "assistant", "content": BY_SCHEMA}, tools=TOOLS)
    said = said.partition("{")[0] + FENCED.get(name, "%s") % BY_SCHEMA
    for size in (1, 5, 10_000):
        message = read(chat, called, size)
        assert [(one.name, json.loads(one.arguments)) for one in message.tool_calls] == [("read_file", ARGUMENTS)]
        assert message.content == ""
        message = read(chat, said, size)
        assert not message.tool_calls
        assert json.loads(message.content) == json.loads(BY_SCHEMA)


def test_which_of_the_two_a_choice_leaves(model: TextModel) -> None:
    schema_only = model.render(HELLO, json_schema=SCHEMA)
    assert model.render(HELLO, tools=TOOLS, tool_choice="none", json_schema=SCHEMA).grammar == schema_only.grammar
    required = model.render(HELLO, tools=TOOLS, tool_choice="required")
    assert model.render(HELLO, tools=TOOLS, tool_choice="required", json_schema=SCHEMA).grammar == required.grammar
