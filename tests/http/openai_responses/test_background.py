"""Responses that are made while nobody waits: looked at, streamed from any event on, cancelled, kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from openai import AsyncOpenAI

from tests.http.serving import Server

DEADLINE_S = 120.0
LONG: dict[str, Any] = {"input": "Tell a long story.", "max_output_tokens": 3000, "background": True}


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Server]:
    running = Server(tiny_model, {"api_keys": ("mine", "yours")})
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
async def sdk(server: Server) -> AsyncIterator[AsyncOpenAI]:
    base_url = f"{server.url}/v1"
    async with AsyncOpenAI(base_url=base_url, api_key="mine", max_retries=0, timeout=DEADLINE_S) as client:
        yield client


async def until_ended(sdk: AsyncOpenAI, name: str) -> Any:
    async with asyncio.timeout(DEADLINE_S):
        while (response := await sdk.responses.retrieve(name)).status == "in_progress":
            pass
    return response


async def test_it_goes_on_by_itself_and_is_kept(sdk: AsyncOpenAI) -> None:
    begun = await sdk.responses.create(model="any", input="Who are you?", max_output_tokens=20, background=True)
    assert begun.background is True
    ended = await until_ended(sdk, begun.id)
    assert ended.status in {"completed", "incomplete"}
    assert ended.output_text
    assert ended.usage is not None
    further = await sdk.responses.create(model="any", input="And?", previous_response_id=begun.id, max_output_tokens=4)
    assert further.usage is not None
    assert further.usage.input_tokens > ended.usage.input_tokens


async def test_it_is_streamed_from_any_event_on(sdk: AsyncOpenAI, server: Server) -> None:
    stream = await sdk.responses.create(model="any", **LONG | {"max_output_tokens": 60}, stream=True)
    first = [await anext(stream) for _ in range(4)]
    await stream.close()  # the connection goes, and the answer goes on
    name = first[0].response.id
    await until_ended(sdk, name)
    events = [event async for event in await sdk.responses.retrieve(name, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[:4] == first
    assert events[-1].type in {"response.completed", "response.incomplete"}
    later = [event async for event in await sdk.responses.retrieve(name, stream=True, starting_after=5)]
    assert later == events[6:]
    async with httpx.AsyncClient(base_url=server.url, timeout=DEADLINE_S) as client:
        ask, path = {"stream": "true"}, f"/v1/responses/{name}"
        yours = await client.get(path, params=ask, headers={"x-api-key": "yours"})
        assert yours.status_code == 404
        for number in ("x", "-1", "100000"):
            wrong = await client.get(path, params={**ask, "starting_after": number}, headers={"x-api-key": "mine"})
            assert wrong.status_code == 400, number


async def test_it_is_cancelled(sdk: AsyncOpenAI, server: Server) -> None:
    begun = await sdk.responses.create(model="any", **LONG, extra_body={"ignore_eos": True})
    assert begun.status == "in_progress"
    cancelled = await sdk.responses.cancel(begun.id)
    assert cancelled.status == "cancelled"
    assert (await sdk.responses.retrieve(begun.id)).status == "cancelled"
    async with asyncio.timeout(DEADLINE_S):
        while server.supervisor.status().engines[0].n_running:  # noqa: ASYNC110  what another thread does
            await asyncio.sleep(0.01)


async def test_what_is_wrong_is_told_at_once(server: Server) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=DEADLINE_S, headers={"x-api-key": "mine"}) as client:
        bodies: tuple[dict[str, Any], ...] = (
            {"input": []},
            {"input": "hi", "store": False},
            {"input": "hi", "grammar": "root ::= ("},
        )
        for body in bodies:
            answer = await client.post("/v1/responses", json={**body, "background": True})
            assert answer.status_code == 400, body
