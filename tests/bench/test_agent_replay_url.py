"""A replay against a running server, by both APIs: what its streams say of lengths and caches, and how it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from luce.supervisor import SupervisorConfig
from scripts.bench.replay.agent_replay import Plan, Remote, prepare, replay_remote
from scripts.bench.replay.prompts import Prepared, Setting
from scripts.bench.replay.remote import Api, anthropic_body
from scripts.bench.replay.transcripts import read_transcript
from tests.http.serving import Server

TRANSCRIPT = Path(__file__).resolve().parents[1] / "data" / "transcripts" / "claude-fix.jsonl"
PLAN = Plan(max_tokens=4, repeats=1, concurrency=1, think=0.0, timeout_s=120.0)


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Server]:
    running = Server(tiny_model, {})
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture(scope="module")
def prepared(tiny_model: Path) -> list[Prepared]:
    config = SupervisorConfig(model=tiny_model, ctx=1900)
    return prepare(config, [read_transcript(TRANSCRIPT)], Setting(system_bytes=100), PLAN.max_tokens)


@pytest.mark.parametrize("api", get_args(Api))
async def test_both_passes_are_told_by_the_server(server: Server, prepared: list[Prepared], api: Api) -> None:
    remote = Remote(server.url, api, "none", "any")
    (cold,), (warm,) = await replay_remote(remote, prepared, PLAN)
    prompts = prepared[0].prompts
    assert len(prompts) >= 3
    assert all(served.ok for served in (*cold.values(), *warm.values()))
    for prompt in prompts:
        before = cold[prompt.session, prompt.number]
        assert 0 < before.ttft_s <= before.total_s
        assert before.n_reused < before.n_prompt / 2
        assert abs(before.n_prompt - len(prompt.ids)) < 60  # the text at its prefix
    last = prompts[-1]
    assert warm[last.session, last.number].n_reused >= len(prompts[-2].ids)


async def test_a_server_that_refuses_is_named(prepared: list[Prepared]) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as refusing:
        url = f"http://127.0.0.1:{refusing.sockets[0].getsockname()[1]}"
        with pytest.raises(ConnectionError, match="status 503"):
            await replay_remote(Remote(url, "openai", "none", "any"), prepared, PLAN)


def test_results_of_tools_go_into_the_users_turn() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Rules"},
        {"role": "user", "content": "Read a"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "name": "read", "content": "text"},
        {"role": "user", "content": "And now?"},
    ]
    body = anthropic_body(messages, ())
    assert body["system"] == "Rules"
    assert [(turn["role"], [block["type"] for block in turn["content"]]) for turn in body["messages"]] == [
        ("user", ["text"]),
        ("assistant", ["tool_use"]),
        ("user", ["tool_result", "text"]),
    ]
