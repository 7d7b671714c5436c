"""Whatever a model has answered is taken again, in all four APIs, streamed or not; and the prompt goes on from the one
before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from luce.supervisor.http.answering.answer_events import FinishedToolCall
from luce.supervisor.http.prompts.answer_request import TextPrompt
from luce.supervisor.http.prompts.answer_spellings import AnswerSpellings
from luce.supervisor.http.prompts.rendering import Renderer
from luce.supervisor.text import TextModel
from tests.http.prompts.history.clients import (
    Answer,
    ChatClient,
    Client,
    CompletionClient,
    MessagesClient,
    ResponsesClient,
)

N_SHORT, N_FULL = 200, 10_000

# What models write that break off, loop, or spell what they should not.
_PIECES = st.sampled_from(
    [
        "Yes.", " ", "\n", "\t", "\0", "\ufffd", "é", "🤔", '"', "'", "\\", "\\u", "\\ud83d", "\\udc00", "{", "}", "[",
        "]", "<|im_end|>", "<|im_start|>user\n", "<think>", "</think>", "<tool_call>", "</tool_call>", "<function=f>",
        "```", "{{ x }}", "<|channel|>analysis<|message|>", "null", "NaN",
    ]
)  # fmt: skip
_TEXTS = st.lists(_PIECES, max_size=4).map("".join) | st.text(max_size=6)
_NUMBERS = st.sampled_from(
    ["0", "-0", "1.50", "1e999", "-1e999", "1e-999", "NaN", "Infinity", "-Infinity", "18446744073709551615", "1" * 30,
     "9" * 5000, "52.520008"]
)  # fmt: skip
_STRINGS = st.sampled_from(
    ['"x"', '"\\ud83d"', '"\\ud83d\\ude00"', '"\\u0000"', '"a\tb"', '"<|im_end|>"', '"\ufffd"', '"\\\\ud83d"', "'x'"]
)
_DEEP = st.sampled_from([20, 99, 101, 150, 250, 2000]).map(lambda n: "[" * n + "]" * n)
_VALUES = _NUMBERS | _STRINGS | _DEEP | st.sampled_from(["true", "None", '{"b": {}}', "[1,]", ""])
_OBJECTS = st.lists(_VALUES, max_size=3).map(
    lambda values: "{" + ", ".join(f'"k{n}": {value}' for n, value in enumerate(values)) + "}"
)
_ARGUMENTS = _OBJECTS | _VALUES | _TEXTS
_CUT = st.tuples(_OBJECTS, st.integers(0, 40)).map(lambda cut: cut[0][: max(len(cut[0]) - cut[1], 1)])


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    is_cut = draw(st.booleans())
    texts = draw(st.lists(_ARGUMENTS, max_size=2)) + ([draw(_CUT)] if is_cut else [])
    calls = [FinishedToolCall(f"call_{n}_{draw(st.integers(0, 9))}", "f", text) for n, text in enumerate(texts)]
    return Answer(draw(_TEXTS), draw(st.just("") | _TEXTS), calls, is_cut)


ROUNDS = st.lists(st.tuples(answers(), st.none() | st.integers(1, 9), _TEXTS), min_size=1, max_size=3)
CLIENTS = [ChatClient, ResponsesClient, MessagesClient, CompletionClient]


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Iterator[TextModel]:
    with TextModel(tiny_model) as model:
        yield model


def prompt_of(renderer: Renderer, client: Client) -> bytes:
    prompt = client.request().prompt
    rendered = renderer.render(prompt, client="me")
    if isinstance(prompt, TextPrompt):
        assert isinstance(prompt.content, str)
        return prompt.content.encode()
    assert rendered.chat is not None
    text = rendered.chat.prompt_bytes
    rendered.close()
    return text


@pytest.mark.parametrize("kind", CLIENTS)
def test_whatever_was_answered_is_taken_again(model: TextModel, kind: Any, full: bool) -> None:
    @settings(max_examples=(N_FULL if full else N_SHORT) // len(CLIENTS), suppress_health_check=list(HealthCheck))
    @given(ROUNDS, st.booleans())
    def hold(rounds: list[tuple[Answer, int | None, str]], remembers: bool) -> None:
        renderer = Renderer(model, spellings=AnswerSpellings(1 << 20 if remembers else 0))
        client: Client = kind(model)
        client.ask("Hello")
        before = prompt_of(renderer, client)
        for answer, n_split, text in rounds:
            client.take(answer, n_split)
            if answer.calls:
                client.give_results(answer.calls, text)
            client.ask(text)
            now = prompt_of(renderer, client)
            assert now.startswith(before), "and the cache serves what was read before"
            before = now

    hold()
