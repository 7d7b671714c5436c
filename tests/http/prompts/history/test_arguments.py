"""Arguments of calls, whatever a model or a client wrote: one object, which llama.cpp reads as it is meant."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.http.prompts.history.arguments import arguments_text, object_of, readable_arguments
from luce.supervisor.http.prompts.rendering import Renderer
from luce.supervisor.text import TextModel

DEEP = '{"a": ' + "[" * 150 + "]" * 150 + "}"
BROKEN = [
    ('{"city": "Ro', {"city": "Ro"}),
    ('{"city": "Rome", "da', {"city": "Rome"}),
    ('{"a": [1, 2', {"a": [1, 2]}),
    ('{"a": 1', {"a": 1}),
    ("{", {}),
    ("{'a':1}", {"a": 1}),
    ("{'a': True, 'b': None, 'c': ('x', 2)}", {"a": True, "b": None, "c": ["x", 2]}),
    ('{"a": 1,}', {"a": 1}),
    ('{"a": "x\ty\n"}', {"a": "x\ty\n"}),
    ('{"a": 1}}', {"a": 1}),
    ('"{\\"a\\": 1}"', {"a": 1}),
    ("", {}),
    (" \n", {}),
    ("null", {}),
    ("[1]", {"arguments": [1]}),
    ("5", {"arguments": 5}),
    ('"x"', {"arguments": "x"}),
    ("sorry, I stop.", {"arguments": "sorry, I stop."}),
]
ODD = [
    ('{"a": NaN}', {"a": "NaN"}),
    ('{"a": [Infinity, -Infinity]}', {"a": ["Infinity", "-Infinity"]}),
    ('{"a": 1e999, "b": -1e999}', {"a": "1e999", "b": "-1e999"}),
    ('{"a": "\\ud99c"}', {"a": "\ufffd"}),
    ('{"a": "\\ud83d\\ude00 \\\\ud83d \\udc00"}', {"a": "\U0001f600 \\ud83d \ufffd"}),
    ('{"\\ud83d": 1}', {"\ufffd": 1}),
    ('{"a": "\ud83d"}', {"a": "\ufffd"}),
    ('{"wei": 100000000000000000000}', {"wei": "100000000000000000000"}),
    ('{"n": 9223372036854775808}', {"n": "9223372036854775808"}),
    ('{"n": ' + "9" * 5000 + "}", {"n": "9" * 5000}),
]
PLAIN = [
    "{}",
    '{"a":1,"b": [1.5, null, true, "é"]}',
    '{ "n" : -9223372036854775808 , "m": 9223372036854775807, "f": 1e308}',
    '{"a": "\\u00e9 \\ud83d\\ude00 \\\\ud83d"}',
    '{"a": ' + "[" * 99 + "]" * 99 + "}",
]


@pytest.mark.parametrize(("text", "expected"), [*BROKEN, *ODD])
def test_what_templates_cannot_read_is_mended(text: str, expected: dict[str, Any]) -> None:
    assert json.loads(readable_arguments(text)) == expected


@pytest.mark.parametrize("text", PLAIN)
def test_what_they_can_read_stays_as_it_is_spelled(text: str) -> None:
    assert readable_arguments(text) == text


@pytest.mark.parametrize("n", [101, 150, 250, 5000])
def test_what_lies_too_deep_is_text(n: int) -> None:
    value = json.loads(readable_arguments('{"a": ' + "[" * n + "]" * n + "}"))
    if n < 200:
        for _ in range(99):
            (value,) = value.values() if isinstance(value, dict) else value
        assert value == ["[" * (n - 99) + "]" * (n - 99)]
    elif n == 5000:
        assert value == {"arguments": '{"a": ' + "[" * n + "]" * n + "}"}


def test_a_value_in_place_of_its_text() -> None:
    assert arguments_text(None) == "{}"
    assert arguments_text({"a": 10**20}) == '{"a": 100000000000000000000}'
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    assert json.loads(arguments_text({"a": deep, "b": 1}))["b"] == 1


def test_what_a_client_gets_is_json() -> None:
    """Whole numbers of any length are; the others are texts."""
    value = object_of('{"a": 1e999, "b": NaN, "c": 100000000000000000000, "d": "\\ud83d"}')
    assert value == {"a": "1e999", "b": "NaN", "c": 10**20, "d": "\ufffd"}
    assert object_of('{"a": 1e999, "b": [1, "cut') == {"a": "Infinity", "b": [1, "cut"]}
    assert object_of("{'a': 1e999, 2: (3,), 'b': None}") == {"a": "Infinity", "2": [3], "b": None}
    for python in ("{'a': {3}}", "{(4, 5): 6}", "{'a': b'6'}", "{'a': 1j}"):
        assert object_of(python) == {"arguments": python}


@pytest.fixture(scope="module")
def renderers(tiny_model: Path, llama_templates_dir: Path) -> Iterator[list[Renderer]]:
    """Templates that show arguments as objects, part by part, and as text."""
    names = ["", "Qwen3-Coder", "Qwen3.5-4B", "mistralai-Mistral-Nemo-Instruct-2407"]
    sources = [(llama_templates_dir / f"{name}.jinja").read_text() if name else None for name in names]
    models = [TextModel(tiny_model, chat_template=source) for source in sources]
    yield [Renderer(model) for model in models]
    for model in models:
        model.close()


def prompt_of(renderer: Renderer, arguments: str) -> str:
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "done"},
    ]
    rendered = renderer.render(ChatPrompt(messages=messages))
    assert rendered.chat is not None
    prompt = rendered.chat.prompt
    rendered.close()
    return prompt


@pytest.mark.parametrize("text", [text for text, _ in (*BROKEN, *ODD)] + [DEEP, *PLAIN])
def test_every_template_takes_them(renderers: list[Renderer], text: str) -> None:
    prompts = [prompt_of(renderer, text) for renderer in renderers]
    assert prompts == [prompt_of(renderer, text) for renderer in renderers]


def test_no_number_becomes_another_one(renderers: list[Renderer]) -> None:
    """llama.cpp's templates have numbers of 64 bits: 18446744073709551615 was -1."""
    for digits in ("18446744073709551615", "9223372036854775808", "100000000000000000000", "-9223372036854775809"):
        assert all(digits in prompt_of(renderer, f'{{"n": {digits}}}') for renderer in renderers)


def test_it_is_said_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("luce.supervisor.http.prompts.notes._said", set())
    with caplog.at_level("INFO", "luce.http.history"):
        for text in ("{'a':1}", "[1]", "{'a':1}", "", "{}"):
            readable_arguments(text)
    assert [record.getMessage() for record in caplog.records] == [
        "arguments of an earlier call that templates cannot read are mended in the prompt"
    ]


_TEXT = st.text(st.characters(exclude_categories=()), max_size=9)  # halves of surrogate pairs too
_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(_TEXT | _ANY.map(json.dumps) | _ANY.map(repr), st.integers(0, 200))
def test_any_text_is_an_object(text: str, n_cut: int) -> None:
    for each in (text, text[: len(text) - n_cut]):
        read = readable_arguments(each)
        value = json.loads(read, parse_constant=pytest.fail)
        assert isinstance(value, dict)
        assert readable_arguments(read) == read, "and then it stays so"
        read.encode()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_that_a_float_holds_stay(number: float) -> None:
    text = json.dumps({"a": number})
    assert readable_arguments(text) == text
    assert math.isfinite(json.loads(text)["a"])
