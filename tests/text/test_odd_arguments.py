"""Calls whose arguments are no object: what the model wrote of them is in the call, whole and streamed."""

from __future__ import annotations

import pytest

from luce.supervisor.text import AnswerParser, TextModel

from .text_models import tool

READ = tool("read_file", path="string")


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ('"hello words"', '"hello words"'),
        ("[1, 2]", "[1, 2]"),
        ("42", "42"),
        (r'"{\"path\": \"a\"}"', '{"path": "a"}'),
        ("null", "{}"),
        ('{"path": "a"}', '{"path": "a"}'),
    ],
)
def test_arguments_that_are_no_object_are_told(model: TextModel, written: str, told: str) -> None:
    text = f'<tool_call>\n{{"name": "read_file", "arguments": {written}}}\n</tool_call>'
    for pieces in ([text], list(text)):
        with AnswerParser(model.render([{"role": "user", "content": "?"}], tools=[READ])) as parser:
            for piece in pieces:
                parser.feed_text(piece)
            finished = parser.finish()
        assert [call.arguments for call in finished.message.tool_calls] == [told]
        assert (finished.consistent, finished.n_unaccounted, finished.message.content) == (True, 0, "")
