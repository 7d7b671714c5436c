"""Answers that say the same for hundreds of tokens are ended, if the server is told to; others never."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from luce.supervisor.http.answering.answer_events import FinishReason
from luce.supervisor.http.answering.choice_decoder import ChoiceDecoder, PlainReading
from luce.supervisor.http.answering.loop_guard import LOOP_ROUNDS, LOOP_TOKENS, MAX_PHRASE_TOKENS, LoopGuard
from luce.supervisor.text import TextModel
from tests.http.serving import Server


def n_until_loop(tokens: Iterator[int] | list[int]) -> int | None:
    guard = LoopGuard()
    return next((number for number, token in enumerate(tokens, start=1) if guard.feed(token)), None)


@pytest.mark.parametrize("n_phrase", [1, 2, 7, MAX_PHRASE_TOKENS])
@pytest.mark.parametrize("n_before", [0, 1, 500])
def test_a_loop_is_seen_when_it_is_long_enough(n_phrase: int, n_before: int) -> None:
    phrase = list(range(n_phrase))
    before = [1000 + number for number in range(n_before)]
    n_least = max(LOOP_TOKENS, LOOP_ROUNDS * n_phrase)
    assert n_until_loop(before + phrase * 1000) == n_before + n_least


def test_what_differs_now_and_then_is_no_loop() -> None:
    assert n_until_loop([5] * (LOOP_TOKENS - 1) + [6] + [5] * (LOOP_TOKENS - 1)) is None
    assert n_until_loop([token for row in range(200) for token in (1, 2, 100 + row, 3)]) is None
    assert n_until_loop(list(range(MAX_PHRASE_TOKENS + 1)) * 20) is None
    draw = random.Random(1)
    assert n_until_loop([draw.randrange(2) for _ in range(20_000)]) is None


def test_a_choice_ends_as_by_its_limit(tiny_model: Path) -> None:
    with TextModel(tiny_model) as model:
        (token,) = set(model.tokenize("!" * 1)) or {0}
        for at_once in (1, 1000):
            choice = ChoiceDecoder(
                0, PlainReading(model), stops=(), ends=model.info.eog, logprobs=None, guard=LoopGuard()
            )
            tokens = [token] * 1000
            for at in range(0, len(tokens), at_once):
                choice.feed(tokens[at : at + at_once])
            assert choice.has_looped
            _, finished = choice.finish(truncated=False)
            assert finished.reason is FinishReason.LENGTH
            assert finished.content == "!" * LOOP_TOKENS
            assert len(choice.tokens) == LOOP_TOKENS


@pytest.mark.parametrize("guards", [True, False])
def test_a_server_ends_it_where_it_is_told_to(tiny_model: Path, guards: bool) -> None:
    running = Server(tiny_model, {"guards_loops": guards, "lanes": 1}).start()
    try:
        with httpx.Client(base_url=running.url, timeout=120) as client:
            body = {
                "model": "any", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 600,
                "temperature": 0, "logit_bias": {"5": 100},
            }  # fmt: skip
            said = client.post("/v1/chat/completions", json=body).json()
            counted = client.get("/metrics").text
    finally:
        running.stop()
    assert said["choices"][0]["finish_reason"] == "length"
    assert said["usage"]["luce"]["loop"] is guards
    n_tokens = said["usage"]["completion_tokens"]
    assert (LOOP_TOKENS <= n_tokens < 600) if guards else n_tokens == 600
    assert f"luce_http_loops_total {float(guards)}" in counted
