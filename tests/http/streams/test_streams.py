"""Answers that go on when their connection breaks, and are taken up again: by their own key, from any byte."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.http.raw_client import post, raw_client
from tests.http.serving import Server

SAID = {"messages": [{"role": "user", "content": "Tell a long story."}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {**SAID, "max_tokens": 300},
    "/v1/messages": {**SAID, "max_tokens": 300},
    "/v1/responses": {"input": "Tell a long story.", "max_output_tokens": 300},
    "/v1/completions": {"prompt": ["Tell a long story.", "Tell me"], "max_tokens": 200},
    "/completion": {"prompt": "Tell a long story.", "n_predict": 200},
}
ENDS = {
    "/v1/chat/completions": b"[DONE]",
    "/v1/messages": b"message_stop",
    "/v1/responses": b"response.incomplete",
    "/v1/completions": b"[DONE]",
    "/completion": b'"stop":true',
}
DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Server]:
    running = Server(tiny_model, {"api_keys": ("mine", "yours")})
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=DEADLINE_S, headers={"x-api-key": "mine"}) as client:
        yield client


async def broken_off(server: Server, path: str, name: str) -> bytes:
    """What a client has of the answer when its connection breaks."""
    headers = f"X-Conversation-Id: {name}\r\nx-api-key: mine\r\n"
    body = {**BODIES[path], "stream": True, "ignore_eos": True, "temperature": 0}
    async with raw_client(server.url) as raw:
        await raw.send(post(path, body, headers=headers))
        head = await raw.read_until(b"\r\n\r\n")
        assert b" 200 " in head.splitlines()[0]
        received = await raw.read_until(b"\n\n")
        raw.vanish()
    return received.partition(b"\r\n")[2]  # of the chunk, its size


async def found(client: httpx.AsyncClient, name: str) -> list[dict[str, Any]]:
    answer = await client.post("/v1/streams/lookup", json={"conversation_ids": [name]})
    result: list[dict[str, Any]] = answer.json()
    return result


@pytest.mark.parametrize("path", BODIES)
async def test_an_answer_goes_on_without_its_client(server: Server, client: httpx.AsyncClient, path: str) -> None:
    name = f"conv::{path}"
    received = await broken_off(server, path, name)
    ask = {"conv_id": name}
    all_of_it = (await client.get("/v1/stream", params={**ask, "from": 0})).content
    assert all_of_it.startswith(received)
    assert all_of_it.count(b"data: ") > 8
    assert ENDS[path] in all_of_it[-3000:]
    for begin in (len(received), len(all_of_it) // 2, len(all_of_it)):
        rest = await client.get("/v1/stream", params={**ask, "from": begin})
        assert rest.headers["content-type"].startswith("text/event-stream")
        assert rest.content == all_of_it[begin:]
    ids = [int(place) for place in re.findall(rb"^id: (\d+)$", all_of_it, re.MULTILINE)]
    behind = await client.get("/v1/stream", params=ask, headers={"Last-Event-ID": str(ids[3])})
    assert behind.content == all_of_it[ids[4] :]
    (entry,) = await found(client, "conv")
    assert (entry["is_done"], entry["total_bytes"]) == (True, len(all_of_it))
    assert (await client.delete("/v1/stream", params=ask)).status_code == 204
    assert (await client.get("/v1/stream", params=ask)).status_code == 404
    assert (await client.delete("/v1/stream", params=ask)).status_code == 204


async def test_it_is_the_same_text_as_without_a_name(client: httpx.AsyncClient) -> None:
    body = {**BODIES["/v1/chat/completions"], "stream": True, "temperature": 0, "max_tokens": 40}

    async def text(headers: dict[str, str]) -> str:
        answer = await client.post("/v1/chat/completions", json=body, headers=headers)
        return "".join(re.findall(r'"content":"((?:[^"\\]|\\.)*)"', answer.text))

    assert await text({}) == await text({"X-Conversation-Id": "same"}) != ""


async def test_deleting_ends_the_answer(server: Server, client: httpx.AsyncClient) -> None:
    await broken_off(server, "/v1/chat/completions", "long")
    assert (await client.delete("/v1/stream", params={"conv_id": "long"})).status_code == 204
    async with asyncio.timeout(DEADLINE_S):
        while server.supervisor.status().engines[0].n_running:  # noqa: ASYNC110  what another thread does
            await asyncio.sleep(0.01)


async def test_a_name_belongs_to_its_key(server: Server, client: httpx.AsyncClient) -> None:
    await broken_off(server, "/v1/chat/completions", "owned")
    ask, yours = {"conv_id": "owned"}, {"x-api-key": "yours"}
    assert (await client.get("/v1/stream", params=ask, headers=yours)).status_code == 404
    assert (await client.post("/v1/streams/lookup", json={"conversation_ids": ["owned"]}, headers=yours)).json() == []
    assert (await client.delete("/v1/stream", params=ask, headers=yours)).status_code == 204
    assert len(await found(client, "owned")) == 1, "nobody else ends it"
    assert (await client.get("/v1/stream", params=ask)).status_code == 200


async def test_what_is_wrong_is_told(client: httpx.AsyncClient) -> None:
    path, headers = "/v1/chat/completions", {"X-Conversation-Id": "refused"}
    body = {**BODIES[path], "stream": True}
    refused = await client.post(path, json={**body, "grammar": "root ::= ("}, headers=headers)
    assert refused.status_code == 400
    assert await found(client, "refused") == [], "an answer that has not begun leaves nothing"
    assert (await client.post(path, json=body, headers={"X-Conversation-Id": "x" * 257})).status_code == 400
    assert (await client.post(path, json=body, headers={"X-Conversation-Id": ""})).status_code == 400
    assert (await client.get("/v1/stream")).status_code == 400
    assert (await client.get("/v1/stream", params={"conv_id": "none"})).status_code == 404
    await client.post(path, json={**body, "max_tokens": 4}, headers={"X-Conversation-Id": "short"})
    many = {"conversation_ids": ["x"] * 1001}
    assert (await client.post("/v1/streams/lookup", json=many)).json()["error"]["code"] == "too_many_ids"
    for begin in ("-1", "x", "1e3", "9" * 40, "1000000"):
        answer = await client.get("/v1/stream", params={"conv_id": "short", "from": begin})
        assert answer.status_code == 400, begin
    answer = await client.get("/v1/stream", params={"conv_id": "short"}, headers={"Last-Event-ID": "1000000"})
    assert answer.json()["error"]["code"] == "offset_lost"
