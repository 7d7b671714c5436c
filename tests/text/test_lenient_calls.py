"""Within the marks of its template a call of a known tool is one, though it is not quite as the format wants it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from luce.supervisor.text import AnswerParser, FinishedAnswer, RenderedChat

from .conftest import OpenWith
from .text_models import added_up, tool

HELLO = [{"role": "user", "content": "Hello"}]
TOOLS = [tool("read", path="string", n="integer"), tool("read_all", paths="array"), tool("stop")]
READ = '{"path": "a", "n": 1}'


def read(chat: RenderedChat, text: str, size: int, *, truncated: bool = False) -> FinishedAnswer:
    with AnswerParser(chat) as parser:
        deltas = [delta for at in range(0, len(text), size) for delta in parser.feed_text(text[at : at + size])]
        finished = parser.finish(truncated=truncated)
    assert added_up([*deltas, *finished.deltas]) == finished.message
    return finished


def said(finished: FinishedAnswer) -> tuple[str, list[tuple[str, Any, str]]]:
    message = finished.message
    return message.content, [(call.name, json.loads(call.arguments), call.id) for call in message.tool_calls]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "call"),
    [
        (f'{{"arguments": {READ}, "name": "read"}}', ("read", {"path": "a", "n": 1}, "")),
        (f'{{"name": "read", "parameters": {READ}}}', ("read", {"path": "a", "n": 1}, "")),
        (f'{{"id": "c1", "type": "function", "name": "read", "arguments": {READ}}}', ("read", json.loads(READ), "c1")),
        (f'{{"name": "read", "arguments": {READ}, "id": "c1"}}', ("read", {"path": "a", "n": 1}, "c1")),
        (
            f'{{"type": "function", "function": {{"arguments": {READ}, "name": "read"}}}}',
            ("read", json.loads(READ), ""),
        ),
        ('{"name": "read", "arguments": {"n": "three"}}', ("read", {"n": "three"}, "")),
        ('{"name": "read"}', ("read", {}, "")),
        ('{"arguments": "{\\"path\\": \\"a\\"}", "name": "read"}', ("read", {"path": "a"}, "")),
        ('{"arguments": {"paths": ["a"]}, "name": "read_all"}', ("read_all", {"paths": ["a"]}, "")),
    ],
)
def test_a_call_that_is_json(open_with: OpenWith, text: str, call: tuple[str, Any, str], size: int) -> None:
    chat = open_with("Qwen-Qwen2.5-7B-Instruct").render(HELLO, tools=TOOLS)
    finished = read(chat, f"I look.\n<tool_call>\n{text}\n</tool_call>", size)
    assert said(finished) == ("I look.\n", [call])


@pytest.mark.parametrize(
    "text",
    [
        f'{{"arguments": {READ}, "name": "none"}}',
        f'{{"arguments": {READ}}}',
        '{"id": "c1"}',
        f'{{"name": ["read"], "arguments": {READ}}}',
    ],
)
def test_what_names_no_tool_is_text(open_with: OpenWith, text: str) -> None:
    chat = open_with("Qwen-Qwen2.5-7B-Instruct").render(HELLO, tools=TOOLS)
    written = f"<tool_call>\n{text}\n</tool_call>"
    for size in (1, 1000):
        assert said(read(chat, written, size)) == (written, [])


def written(*parameters: tuple[str, str], name: str = "read") -> str:
    lines = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{lines}</function>\n</tool_call>"


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (written(("n", "1"), ("path", "a")), {"n": 1, "path": "a"}),
        (written(("path", "a")), {"path": "a"}),
        (written(), {}),
        (written(("path", "a"), ("n", "abc")), {"path": "a", "n": "abc"}),
        (written(("n", "12abc"), ("path", "a")), {"n": "12abc", "path": "a"}),
        (written(("n", ""), ("path", "a")), {"n": "", "path": "a"}),
        (written(("n", "[1, 2]")), {"n": [1, 2]}),
        (written(("n", "['a']")), {"n": "['a']"}),
        (written(("n", "null")), {"n": None}),
        (written(("path", "a"), ("more", "1")), {"path": "a", "more": "1"}),
        (written(("paths", "a, b"), name="read_all"), {"paths": "a, b"}),
    ],
)
def test_a_call_of_tags(open_with: OpenWith, text: str, arguments: dict[str, Any], size: int) -> None:
    chat = open_with("Qwen3.5-4B").render(HELLO, tools=TOOLS)
    finished = read(chat, f"so</think>\n\n{text}", size)
    content, [(_, read_arguments, _)] = said(finished)
    assert (content, read_arguments) == ("", arguments)


@pytest.mark.parametrize("name", ["GLM-4.6", "unsloth-Apriel-1.5", "ByteDance-Seed-OSS", "muse-glimmer"])
def test_a_parameter_of_another_type_in_other_formats(open_with: OpenWith, name: str) -> None:
    """Written as the template writes it."""
    model = open_with(name)
    chat = model.render(HELLO, tools=TOOLS)
    call = {"name": "read", "arguments": {"path": "a", "n": "abc"}}
    answer = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call00001", "type": "function", "function": call}],
    }
    rendered = model.render([*HELLO, answer], tools=TOOLS, add_generation_prompt=False).prompt
    text = rendered.removeprefix(chat.prompt.removesuffix(chat.generation_prompt)).removeprefix(chat.generation_prompt)
    for size in (1, 1000):
        _, calls = said(read(chat, text, size))
        assert calls == [("read", {"path": "a", "n": "abc"}, "")]


@pytest.mark.parametrize("text", ["read", "}", " true", '"name"', "path", ":", "0 null"])
@pytest.mark.parametrize("name", ["Qwen-Qwen2.5-7B-Instruct", "Qwen3.5-4B"])
def test_words_of_the_format_behind_a_call_are_text(open_with: OpenWith, name: str, text: str) -> None:
    """What a tool or a parameter is called, and what JSON is made of."""
    call = f'<tool_call>\n{{"name": "read", "arguments": {READ}}}\n</tool_call>'
    if name == "Qwen3.5-4B":
        call = "so</think>\n\n" + written(("path", "a"), ("n", "1"))
    chat = open_with(name).render(HELLO, tools=TOOLS)
    for size in (1, 1000):
        content, calls = said(read(chat, f"{call}\n{text}", size))
        assert (content.strip(), len(calls)) == (text.strip(), 1)


def test_a_value_that_a_limit_cuts_off_is_of_the_call(open_with: OpenWith) -> None:
    chat = open_with("Qwen3.5-4B").render(HELLO, tools=TOOLS)
    text = "so</think>\n\n<tool_call>\n<function=read>\n<parameter=path>\na\n</parameter>\n<parameter=n>\n"
    for begun, shown in (("12", "12"), ("tru", "tru"), ("abc", '"abc')):
        for size in (1, 1000):
            message = read(chat, text + begun, size, truncated=True).message
            assert (message.content, message.tool_calls[0].arguments) == ("", f'{{"path":"a","n":{shown}')


@pytest.mark.parametrize("arguments", [READ, "111111111111111111111111", "[1, 2]", '"a"', "{}"])
def test_a_call_that_a_limit_cuts_off_has_no_more_than_its_arguments(open_with: OpenWith, arguments: str) -> None:
    """Keys of the format are not of them, nor is half of one."""
    chat = open_with("Qwen-Qwen2.5-7B-Instruct").render(HELLO, tools=TOOLS)
    for before in ("", "call:f{{"):
        text = f'{before}<tool_call>\n{{"name": "read", "arguments": {arguments}}}\n</tool_call>'
        begin = text.index(arguments, text.index("arguments") + 9)
        for end in range(text.index("read") + 4, len(text)):
            for size in (1, 1000):
                finished = read(chat, text[:end], size, truncated=True)
                assert finished.n_unaccounted == 0, text[:end]
                shown = "".join(call.arguments for call in finished.message.tool_calls)
                begun = text[begin:end]
                assert shown in {begun[: len(shown)], "{"}, text[:end]
