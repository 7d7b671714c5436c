"""Thousands of spoilt bodies: each gets an answer or a clear refusal, none a 5xx, a hang or somebody's memory."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
from aiohttp import ClientSession, ClientTimeout

from tests.http.conftest import MakeServer
from tests.http.serving import Server
from tests.http.transport.spoilt_bodies import spoilt_body

N_SHORT, N_FULL = 40, 10_000
N_AT_ONCE = 8
REFUSALS = {400, 408, 413, 422, 501}
PATIENCE = ClientTimeout(total=300)  # some ask for as much as there is room for


@asynccontextmanager
async def session() -> AsyncIterator[ClientSession]:
    async with ClientSession(timeout=PATIENCE) as made:
        yield made


async def ask(client: ClientSession, server: Server, seed: int) -> tuple[int, str]:
    """Status, and what is wrong with the answer, if anything."""
    path, body = spoilt_body(seed)
    headers = {"Content-Type": "application/json", "anthropic-version": "2023-06-01"}
    async with client.post(server.url + path, data=body, headers=headers) as response:
        text = await response.text()
        if response.status == 200:
            return 200, wrong_answer(path, response.content_type, text)
        if response.status not in REFUSALS:
            return response.status, f"status {response.status}: {text[:300]}"
        return response.status, wrong_refusal(path, text)


def wrong_answer(path: str, kind: str, text: str) -> str:
    if kind == "application/json":
        return "" if "error" not in json.loads(text) or path == "/v1/responses" else f"an error with status 200: {text}"
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    last = events[-1] if events else ""
    ends = ("[DONE]", '"type":"message_stop"', '"type": "message_stop"', "response.completed", "response.incomplete")
    return "" if any(end in last for end in ends) else f"a stream that ends with {last[:300]}"


def wrong_refusal(path: str, text: str) -> str:
    """Each API has its own shape of errors."""
    value: Any = json.loads(text)
    error = value.get("error")
    if not isinstance(error, dict) or not error.get("message") or not error.get("type"):
        return f"a refusal of another shape: {text[:300]}"
    if path.startswith("/v1/messages") and value.get("type") != "error":
        return f"not Anthropic's shape: {text[:300]}"
    return ""


async def test_spoilt_bodies(make_server: MakeServer, full: bool) -> None:
    seeds = iter(range(N_FULL if full else N_SHORT))
    statuses: Counter[int] = Counter()
    wrong: list[str] = []
    async with make_server(lanes=4, ctx=1024, pool=4096) as server:
        async with session() as client:

            async def work() -> None:
                for seed in seeds:
                    try:
                        status, complaint = await ask(client, server, seed)
                    except TimeoutError:
                        status, complaint = 0, "no answer in time"
                    statuses[status] += 1
                    if complaint:
                        wrong.append(f"seed {seed}: {complaint}")

            async with asyncio.TaskGroup() as group:
                for _ in range(N_AT_ONCE):
                    group.create_task(work())
        assert not wrong, "\n".join(wrong[:20])
        assert statuses[200] > 0
        assert statuses[400] > 0
        await check_nothing_is_left(server)


async def check_nothing_is_left(server: Server) -> None:
    async with asyncio.timeout(120):
        while not is_idle(server):  # noqa: ASYNC110  what another thread does
            await asyncio.sleep(0.05)
    status = server.supervisor.status()
    assert status.engines[0].n_deaths == 0
    assert status.n_failed == 0


def is_idle(server: Server) -> bool:
    """No lane at work, no request in the queue, no connection of a client that has gone."""
    status = server.supervisor.status()
    port = int(server.url.rpartition(":")[2])
    connections = psutil.Process().net_connections("tcp")
    left = [each for each in connections if each.laddr.port == port and each.status != psutil.CONN_LISTEN]
    return not (left or status.n_waiting or status.engines[0].n_running)
