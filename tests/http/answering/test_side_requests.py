"""Beside a conversation agents send short requests of their own (titles, topics, checks) and let sub-agents go on from
it: the former do not push it out of a small memory, the latter share its pages."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.http.answering.answering_fixtures import READ
from tests.http.serving import CALL_S, Server

Message = dict[str, Any]

N_POOL = 4608  # tokens: the conversation, and a few side requests
N_SIDE = 30


def words(rng: random.Random, n: int) -> str:
    return " ".join(rng.choice(("file", "line", "code", "test", "path", "name", "value", "loop")) for _ in range(n))


class Agent:
    """Goes on with one conversation."""

    def __init__(self, server: Server, rng: random.Random) -> None:
        self._server = server
        self._rng = rng
        self.messages: list[Message] = [
            {"role": "system", "content": words(rng, 900)},
            {"role": "user", "content": words(rng, 400)},
        ]

    def ask(self, *more: Message) -> tuple[str, int, int]:
        """The answer to the conversation, its prompt's tokens and how many were known."""
        return self.post({"messages": [*self.messages, *more], "tools": [READ], "max_tokens": 16})

    def go_on(self) -> tuple[int, int]:
        text, n_prompt, n_cached = self.ask()
        said = {"role": "assistant", "content": text}
        self.messages += [said, {"role": "user", "content": words(self._rng, 400)}]
        return n_prompt, n_cached

    def post(self, body: Message) -> tuple[str, int, int]:
        answer = httpx.post(f"{self._server.url}/v1/chat/completions", json={"temperature": 0, **body}, timeout=CALL_S)
        answer.raise_for_status()
        usage = answer.json()["usage"]
        text = answer.json()["choices"][0]["message"]["content"]
        return text, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def side_request(rng: random.Random, number: int) -> Message:
    messages = [
        {"role": "system", "content": f"Write a title. {words(rng, 150)}"},
        {"role": "user", "content": f"{number}: {words(rng, 60)}"},
    ]
    return {"messages": messages, "max_tokens": 4}


@pytest.mark.parametrize("host_cache", [pytest.param(900_000, marks=pytest.mark.full_only), 1_500_000])
def test_a_conversation_outlives_its_side_requests(test_models: Path, host_cache: int) -> None:
    """All of them together are twice what pool and host hold. Pages alone (no state) are chosen by how long agents
    pause, which a second's worth of requests cannot show: native/tests/memory/eviction_test.cpp has a clock."""
    rng = random.Random(3)
    options = {"lanes": 1, "ubatch": 256, "ctx": N_POOL, "pool": N_POOL, "host_cache": host_cache}
    server = Server(test_models / "qwen35.gguf", options).start()
    try:
        agent = Agent(server, rng)
        n_before = 0
        for _ in range(4):
            n_before, _ = agent.go_on()
        assert n_before > 2500
        for number in range(N_SIDE):
            agent.post(side_request(rng, number))
        _, n_cached = agent.go_on()
    finally:
        server.stop()
    assert n_cached >= n_before - 8


@pytest.mark.parametrize("family", ["qwen3", "qwen35", "gemma4"])
def test_forks_of_a_conversation_share_its_pages(test_models: Path, family: str) -> None:
    """At the same time, each behind an instruction of its own."""
    server = Server(test_models / f"{family}.gguf", {"lanes": 4, "ubatch": 256, "ctx": N_POOL}).start()
    try:
        rng = random.Random(5)
        agent = Agent(server, rng)
        n_before, _ = agent.go_on()
        agent.messages.pop()
        orders = [{"role": "user", "content": f"Number {number}. {words(rng, 20)}"} for number in range(4)]
        before = resident_pages(server)
        with ThreadPoolExecutor(4) as pool:
            forks = list(pool.map(agent.ask, orders))
        grown = resident_pages(server) - before
    finally:
        server.stop()
    assert all(n_cached >= n_before - 8 for _, _, n_cached in forks)
    # What each has read itself, and up to a page more at either end.
    assert grown <= sum((n_prompt + 16 - n_cached) // 64 + 2 for _, n_prompt, n_cached in forks)
    assert grown * 64 < n_before


def resident_pages(server: Server) -> int:
    (figures,) = server.call(server.supervisor.engine_status)
    return int(figures["pages_resident"])
