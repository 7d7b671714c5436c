"""Tool calls that come as text are read as calls, and nothing else is: prose, code and JSON stay what they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.supervisor.http.answering.answer_events import (
    ChoiceFinished,
    ContentPiece,
    FinishReason,
    Piece,
    ToolCallPiece,
)
from luce.supervisor.http.answering.answerer import call_hold
from luce.supervisor.http.answering.call_repair import CallHold
from luce.supervisor.http.answering.choice_decoder import ChoiceDecoder, PlainReading
from luce.supervisor.http.answering.leading_calls import RepairedCall
from luce.supervisor.http.prompts.answer_request import ChatPrompt, TextPrompt
from luce.supervisor.http.prompts.history.lenient_json import lenient_json
from luce.supervisor.text import TextModel

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}},
                "required": ["path"],
            },
        },
    },
    {"type": "function", "function": {"name": "list", "parameters": {"type": "object", "properties": {}}}},
]
XML = "<function=read>\n<parameter=path>\na.py\n</parameter>\n<parameter=limit>\n5\n</parameter>\n</function>"
READ = ("read", {"path": "a.py", "limit": 5})
BARE = '{"name": "read", "arguments": {"path": "a.py", "limit": 5}}'
LIST = '{"name": "list", "arguments": {}}'

CALLS: list[tuple[str, str, list[tuple[str, dict[str, Any]]]]] = [
    (XML, "", [READ]),
    (f"I look.\n{XML}\n</tool_call>\n", "I look.\n", [READ]),
    (f"{XML}\n{XML}", "", [READ, READ]),
    ("<function=read>\n<parameter=path>\na\n\nb\n</parameter>\n</function>", "", [("read", {"path": "a\n\nb"})]),
    ("<function=read>\n<parameter=path>\na.py", "", [("read", {"path": "a.py"})]),
    ("<function=list>\n</function>", "", [("list", {})]),
    ('{"name": "read", "arguments": {"path": "a.py", "limit": 5}}', "", [READ]),
    ('{"name": "read", "parameters": {"path": "a.py", "limit": 5}}\n', "", [READ]),
    ('{"name": "read", "arguments": "{\\"path\\": \\"a.py\\", \\"limit\\": 5}"}', "", [READ]),
    ('{"function": {"name": "read", "arguments": {"path": "a.py", "limit": 5}}}', "", [READ]),
    ('{"name": "read", "arguments": {"path": "a.py", "limit": 5}', "", [READ]),
    ('{"name": "read", "arguments": {"path": "a.py", "limit": 5,},}', "", [READ]),
    ('{"name": "read", "arguments": {"path": "a.py", "limit": 5}}}', "", [READ]),
    ("{'name': 'read', 'arguments': {'path': 'a.py', 'limit': 5}}", "", [READ]),
    ('Hm.\n<tool_call>\n{"name": "read", "arguments": {"path": "a.py", "limit": 5}}', "Hm.\n", [READ]),
    ('{"name": "read", "arguments": {"path": "a {b\n", "limit": 5}}', "", [("read", {"path": "a {b\n", "limit": 5})]),
    ("<function=read>\n</function>", "", [("read", {})]),  # the agent tells the model what is missing
    ("{'name': 'list', 'parameters': {}}", "", [("list", {})]),
    (f"\n {BARE}", "", [READ]),
    (BARE.replace(", ", ",\n  ").replace("{", "{\n  "), "", [READ]),
    ('{"arguments": {"path": "a.py", "limit": 5}, "name": "read"}', "", [READ]),
    ('{"parameters": {"path": "a.py", "limit": 5}, "name": "read"}', "", [READ]),
    ('{"type": "function", "function": {"name": "read", "arguments": {"path": "a.py", "limit": 5}}}', "", [READ]),
    ('{"type": "function", "name": "read", "parameters": {"path": "a.py", "limit": 5}}', "", [READ]),
    ('{"function": "read", "arguments": {"path": "a.py", "limit": 5}}', "", [READ]),
    ('{"name": "read", "arguments": {"path": "{\\"}} \\\\"}}', "", [("read", {"path": '{"}} \\'})]),
    ('{"name": "read", "arguments": {}}', "", [("read", {})]),
    (f"```json\n{BARE}\n```", "", [READ]),
    (f"```\n{BARE}\n```\n", "", [READ]),
    (f"~~~tool_call\n  {BARE}\n~~~", "", [READ]),
    (f"```json\n{BARE}", "", [READ]),
    (f"```json\n{BARE[:-1]}\n```", "", [READ]),
    (f"```xml\n<tool_call>\n{BARE}\n</tool_call>\n```", "", [READ]),
    (f"<tools>\n{BARE}\n</tools>", "", [READ]),
    (f"[{BARE}]", "", [READ]),
    (f"{BARE}\n{LIST}", "", [READ, ("list", {})]),
    (f"[{BARE}, {LIST}]", "", [READ, ("list", {})]),
    (f"{BARE}; {BARE}", "", [READ, READ]),
    (f"{BARE[:-1]}]}}", "", [READ]),
    ('{"name": "read", "arguments": {"path": "\\ud83d"}}', "", [("read", {"path": "\ufffd"})]),
    (f"{BARE[:-1]}]\n{LIST}", "", [READ, ("list", {})]),
    (f"{BARE[:-1]}\n{LIST}", "", [READ, ("list", {})]),
    (f"```json\n{BARE}\n```\n\n```json\n{LIST}\n```", "", [READ, ("list", {})]),
    (f"<tool_call>{BARE}</tool_call>\n<tool_call>{LIST}</tool_call>", "", [READ, ("list", {})]),
    (f"{BARE}\nThat reads it.", "That reads it.", [READ]),
    (f"{BARE}\n```\nNow {LIST}", f"Now {LIST}", [READ]),
    (f'{BARE}\n{{"name": "Ann", "age": 5}}', '{"name": "Ann", "age": 5}', [READ]),
]

TEXTS = [
    "",
    "Just words.",
    f"Call it like this: {XML}",
    f"```xml\n{XML}\n```",
    f"An example:\n~~~\n{XML}\n~~~\nand so on",
    f"{XML}\nThat is how it is done.",
    "<function=unknown>\n<parameter=path>\na\n</parameter>\n</function>",
    "<function=read>\nsome text\n</function>",
    "<functional programming is fun>",
    "<tool_call> is the tag that begins a call.",
    "<tool_call>",
    "<tool",
    "<",
    "{",
    "{}",
    '{"name": "read"}',
    '{"name": "Ann", "arguments": {"path": "a"}}',
    '{"name": "read", "arguments": ["a"]}',
    '{"name": "read", "arguments": {"path": "a cut tex',
    'Words. {"name": "read", "arguments": {"path": "a"}}',
    'Words.\n{"name": "read", "arguments": {"path": "a"}}',
    '{"answer": 42, "name": "read"}',
    "{'name': __import__('os'), 'arguments': {}}",
    "if (x) {\n  y();\n}\n",
    f"It is called so:\n\n```json\n{BARE}\n```",
    f"`{BARE}`",
    f"> {BARE}",
    f"```python\nprint({BARE})\n```",
    f"```json\n// an example\n{BARE}\n```",
    '```json\n{"name": "reads", "arguments": {}}\n```',
    '{"name": "rea", "arguments": {}}',
    '{"age": 5, "name": "read", "arguments": {"path": "a"}}',
    '{"call": ' + BARE + "}",
    '{"type": "text", "name": "read", "arguments": {}}',
    '{"arguments": {"path": "a"}, "name": "write"}',
    '["read", "list"]',
    "[1, 2]",
    "[[]]",
    "```",
    "```json\n",
    "``",
    "\n\n \n",
    " \n" * 1000 + BARE,
    "{" + " " * 1000 + BARE[1:],
]


def pieces_of(text: str, size: int) -> Iterator[str]:
    for at in range(0, len(text), size):
        yield text[at : at + size]


def read(hold: CallHold, text: str, size: int, *, stops: bool = False) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """The text that is shown of an answer, and its calls. `stops`: none of it comes behind its end."""
    shown = ""
    calls: list[RepairedCall] = []
    for piece in pieces_of(text, size):
        more, after = hold.feed(piece)
        calls += more
        shown += after
        if stops and hold.has_ended:
            break
    more, after = hold.finish()
    return shown + after, [(call.name, json.loads(call.arguments)) for call in [*calls, *more]]


@pytest.mark.parametrize("size", [1, 3, 7, 10_000])
@pytest.mark.parametrize(("text", "shown", "calls"), CALLS)
def test_what_can_only_be_a_call_is_one(
    text: str, shown: str, calls: list[tuple[str, dict[str, Any]]], size: int
) -> None:
    assert read(CallHold(TOOLS), text, size) == (shown, calls)


@pytest.mark.parametrize("size", [1, 3, 7, 10_000])
@pytest.mark.parametrize("text", TEXTS)
def test_what_may_be_anything_else_stays_as_it_is(text: str, size: int) -> None:
    hold = CallHold(TOOLS)
    assert read(hold, text, size) == (text, [])
    assert (hold.finish(), hold.has_ended) == (([], ""), False)


@pytest.mark.parametrize("size", [1, 3, 7, 10_000])
@pytest.mark.parametrize("text", [BARE, f"[{BARE}", f"```json\n{BARE}", f"<tool_call>{BARE}", f"\n{BARE}"])
@pytest.mark.parametrize("behind", ["", "\n", "}", f"\n{LIST}", f", {LIST}]", "\n```\nThat reads it.", "\n{"])
def test_an_answer_ends_behind_as_many_calls_as_are_wanted(text: str, behind: str, size: int) -> None:
    hold = CallHold(TOOLS, max_calls=1)
    assert read(hold, text + behind, size, stops=True) == ("", [READ])
    assert hold.has_ended
    assert read(CallHold(TOOLS, max_calls=2), f"{text}\n{text}{behind}", size, stops=True) == ("", [READ, READ])


FRAGMENTS = (
    BARE, LIST, BARE[:-1], "{", "}", "[", "]", ",", ";", ":", '"', "'", "\\", "\n", " ", "`", "```", "```json\n", "~~~",
    "<tool_call>", "</tool_call>", "<tools>", "</", "<", "<function=read>", "</function>", "name", '{"name": "read"',
    '"arguments": {', '"type": "function"', '{"function": ', "Words.", "é", "0", "// ",
)  # fmt: skip


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join), st.integers(1, 9), st.sampled_from([None, 1, 2]))
def test_it_does_not_matter_where_an_answer_is_cut(text: str, size: int, max_calls: int | None) -> None:
    """And what is neither shown nor a call is marks around calls alone."""
    shown, calls = read(CallHold(TOOLS, max_calls), text, 10_000, stops=True)
    assert read(CallHold(TOOLS, max_calls), text, size, stops=True) == (shown, calls)
    if not calls:
        assert shown == text
    assert max_calls is None or len(calls) <= max_calls


def test_prose_is_not_held_back() -> None:
    hold = CallHold(TOOLS)
    for piece in (
        "Words",
        " and\n",
        "more <function=read> ",
        "words\n",
        "```\n",
        "<function=read>",
        "\n```\n",
        "x < y\n",
    ):
        assert hold.feed(piece) == ([], piece)
    assert hold.feed("<fun") == ([], "")
    assert hold.feed("ny>") == ([], "<funny>")
    assert hold.feed(" and on") == ([], " and on")


@pytest.mark.parametrize(
    ("held", "shown"),
    [
        ("{", '"items": ['),
        ('{"', "id"),
        ('{ "name": "', "Ann"),
        ('{"name": "read', "er"),
        ('{"type": "', "text"),
        ("[", "1"),
        ('[{"', "key"),
        ("```python\n", "i"),
        ("```json\n{", '"x'),
        ("`", "x"),
        ("<to", "p>"),
    ],
)
def test_what_is_no_call_is_shown_at_once(held: str, shown: str) -> None:
    hold = CallHold(TOOLS)
    assert [hold.feed(piece) for piece in held] == [([], "")] * len(held)
    assert hold.feed(shown) == ([], held + shown)
    assert hold.feed(" {") == ([], " {")


def test_a_call_comes_with_its_last_bracket() -> None:
    hold = CallHold(TOOLS)
    assert hold.feed(BARE[:-1]) == ([], "")
    (call,), text = hold.feed(BARE[-1])
    assert ((call.name, json.loads(call.arguments)), text) == (READ, "")


def test_a_call_is_looked_for_behind_reasoning() -> None:
    hold = CallHold(TOOLS)
    assert hold.feed("\n\n") == ([], "")
    assert hold.release() == "\n\n"
    assert read(hold, BARE, 3) == ("", [READ])
    assert hold.release() == ""


@pytest.mark.parametrize("text", ["{" * 100_000, "[" * 100_000 + '"name"', '{"a":' * 50_000, "(" * 10_000])
def test_deep_nesting_ends_in_order(text: str) -> None:
    assert lenient_json(text) is None or isinstance(lenient_json(text), list | dict)


def test_calls_are_looked_for_where_they_may_come() -> None:
    messages = [{"role": "user", "content": "a"}]
    assert call_hold(ChatPrompt(messages=messages, tools=TOOLS)) is not None
    for prompt in (
        TextPrompt(content="a"),
        ChatPrompt(messages=messages),
        ChatPrompt(messages=messages, tools=TOOLS, tool_choice="none"),
        ChatPrompt(messages=messages, tools=TOOLS, tool_choice="required"),
        ChatPrompt(messages=messages, tools=TOOLS, tool_choice="function:read"),
        ChatPrompt(messages=messages, tools=TOOLS, json_schema={}),
        ChatPrompt(messages=messages, tools=TOOLS, grammar='root ::= "a"'),
    ):
        assert call_hold(prompt) is None


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Iterator[TextModel]:
    with TextModel(tiny_model) as opened:
        yield opened


def decoded(
    model: TextModel, text: str, *, stops: tuple[str, ...] = (), truncated: bool = False, max_calls: int | None = None
) -> tuple[list[Piece], ChoiceFinished, int]:
    choice = ChoiceDecoder(
        0,
        PlainReading(model),
        stops=stops,
        ends=model.info.eog,
        logprobs=None,
        max_calls=max_calls,
        hold=CallHold(TOOLS),
    )
    pieces: list[Piece] = []
    for token in model.tokenize(text):
        pieces += choice.feed([token])
    rest, finished = choice.finish(truncated=truncated)
    return [*pieces, *rest], finished, choice.n_repaired


def test_an_answer_ends_with_the_call(model: TextModel) -> None:
    pieces, finished, n_repaired = decoded(model, f"I look.\n{XML}")
    assert (finished.content, finished.reason, n_repaired) == ("I look.\n", FinishReason.TOOL_CALLS, 1)
    (call,) = finished.tool_calls
    assert (call.name, json.loads(call.arguments)) == READ
    assert call.id.startswith("call_")
    assert "".join(piece.text for piece in pieces if isinstance(piece, ContentPiece)) == "I look.\n"
    (shown,) = [piece for piece in pieces if isinstance(piece, ToolCallPiece)]
    assert (shown.id, shown.name, shown.arguments) == (call.id, call.name, call.arguments)


def test_an_answer_that_was_cut_off_or_stopped_is_text(model: TextModel) -> None:
    for options, reason in (
        ({"truncated": True}, FinishReason.LENGTH),
        ({"stops": ("</function>",)}, FinishReason.STOP_TEXT),
    ):
        _, finished, n_repaired = decoded(model, f"I look.\n{XML}", **options)
        assert (finished.reason, finished.tool_calls, n_repaired) == (reason, (), 0)
        assert finished.content == f"I look.\n{XML}".removesuffix("</function>" if "stops" in options else "")


def test_no_more_calls_than_were_asked_for(model: TextModel) -> None:
    _, finished, n_repaired = decoded(model, f"{XML}\n{XML}", max_calls=1)
    assert (len(finished.tool_calls), n_repaired) == (1, 1)
