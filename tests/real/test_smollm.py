"""SmolLM2-135M-Instruct, a small model that people know, behind the server: it answers what it is asked, and the same
whichever way its text came into memory. Texts part at near-ties alone (tests/daemon/same_tokens.py)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion

from luce.supervisor.checking.engines import EngineStarter
from luce.supervisor.checking.noise import N_MEASURED, measure_noise
from luce.supervisor.checking.texts import Texts
from luce.supervisor.config import DaemonConfig
from luce.supervisor.text import TextModel
from tests.daemon.same_tokens import Comparison
from tests.http.serving import Server

QUESTIONS = (
    "What is the capital of France?",
    "Write a Python function that adds two numbers.",
    "Name three colours.",
    "Why is the sky blue?",
)
N_TOKENS = 12
SYSTEM = {"role": "system", "content": "You are a helpful assistant."}


@pytest.fixture(scope="module")
def server(smollm: Path) -> Iterator[Server]:
    running = Server(smollm, {"threads": 2, "ctx": 2048, "pool": 8192})
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture(scope="module")
def noise(smollm: Path, luced: Path) -> float:
    """This model's own, on this machine."""
    with TextModel(smollm) as model:
        ids = Texts(model, model.n_vocab).of_length(N_MEASURED)[0].ids
    config = DaemonConfig(model=smollm, ctx=1024, threads=2, log_level="error")
    return asyncio.run(measure_noise(EngineStarter(luced, config), ids))


@dataclass(frozen=True)
class Greedy:
    """An answer's tokens, and how far each one's logprob leads the second one's."""

    tokens: list[str]
    margins: list[float]


def greedy(question: str) -> dict[str, Any]:
    messages = [SYSTEM, {"role": "user", "content": question}]
    sampling = {"max_tokens": N_TOKENS, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    return {"model": "luce", "messages": messages, **sampling}


def read(completion: ChatCompletion) -> Greedy:
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content
    margins = [entry.top_logprobs[0].logprob - entry.top_logprobs[1].logprob for entry in logprobs.content]
    return Greedy([entry.token for entry in logprobs.content], margins)


def ask_together(server: Server) -> list[Greedy]:
    async def ask() -> list[ChatCompletion]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
            return await asyncio.gather(*(client.chat.completions.create(**greedy(one)) for one in QUESTIONS))

    return [read(completion) for completion in asyncio.run(ask())]


def test_greedy_answers_are_the_same_fresh_warm_together_and_after_a_kill(
    server: Server, sdk: OpenAI, noise: float
) -> None:
    def ask_singly() -> list[Greedy]:
        return [read(sdk.chat.completions.create(**greedy(question))) for question in QUESTIONS]

    ids: dict[str, int] = {}

    def ids_of(answer: Greedy) -> list[int]:
        return [ids.setdefault(token, len(ids)) for token in answer.tokens]

    comparison = Comparison(noise)
    fresh = ask_singly()
    assert all(len(answer.tokens) > 5 for answer in fresh)

    def check(way: str, answers: list[Greedy]) -> None:
        for question, answer, first in zip(QUESTIONS, answers, fresh, strict=True):
            comparison.check(f"{way}: {question}", ids_of(answer), ids_of(first), first.margins)

    check("warm", ask_singly())
    check("together", ask_together(server))
    for pid in server.supervisor.engine_pids():
        os.kill(pid, signal.SIGKILL)
    check("after a kill", ask_together(server))
    comparison.finish()


def test_a_question_is_answered_and_the_next_turn_reads_little(sdk: OpenAI) -> None:
    messages: list[Any] = [SYSTEM, {"role": "user", "content": QUESTIONS[0]}]
    first = sdk.chat.completions.create(model="luce", messages=messages, max_tokens=48, temperature=0)
    answer = first.choices[0].message.content
    assert answer is not None
    assert "Paris" in answer
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Say that again."}]
    stream = sdk.chat.completions.create(
        model="luce",
        messages=messages,
        max_tokens=16,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Paris" in text
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens is not None
    assert 0 < usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens <= 20
