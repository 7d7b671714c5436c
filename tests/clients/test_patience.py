"""Clients that lose their patience during a long prefill: they see signs of life that they count; and where they give
up all the same, what has been read of the prompt is not lost to the request that they send next.

The engine is stopped by a signal for as long as a test wants it to be slow, so that no outcome hangs on the clock.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import pytest
from aiohttp import ClientResponse, ClientSession

from luce.supervisor.supervisor_status import LaneStatus
from tests.clients.patient_clients import (
    CLIENTS,
    CODEX,
    DEADLINE_S,
    GaveUpError,
    PatientClient,
    Reading,
    usage_of,
    usage_of_stream,
)
from tests.http.conftest import MakeServer
from tests.http.serving import Server

PATIENT = {"stopped_timeout_s": 600.0, "asleep_timeout_s": 600.0, "stalled_timeout_s": 600.0}
"""The supervisor takes an engine that a test has stopped for a slow one."""
LONG_IDLE_S = DEADLINE_S
LONG_MESSAGE = " and then once more, from the start to the end" * 90

ByName = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    """The engine computes nothing meanwhile."""
    (pid,) = server.supervisor.engine_pids()
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def lanes(server: Server) -> tuple[LaneStatus, ...]:
    (engine,) = server.supervisor.status().engines
    return engine.running


async def wait_for(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  what another thread does
            await asyncio.sleep(0.002)


async def wait_until_idle(server: Server) -> None:
    await wait_for(lambda: not lanes(server) and server.supervisor.status().n_waiting == 0)


@asynccontextmanager
async def slow_server(make_server: MakeServer, **options: Any) -> AsyncIterator[tuple[Server, ClientSession]]:
    async with make_server(**{"ubatch": 16, "ctx": 16384, **PATIENT, **options}) as server, ClientSession() as session:
        yield server, session


@pytest.fixture
async def signs(make_server: MakeServer) -> AsyncIterator[tuple[Server, ClientSession]]:
    async with slow_server(make_server, keep_alive_s=0.2, lanes=4, pool=32768, ubatch=512) as running:
        yield running


async def test_signs_of_life_come_before_the_prompt_is_read(signs: tuple[Server, ClientSession]) -> None:
    """Headers, a first event that counts, and then again and again something that counts, to all four at once."""
    server, session = signs
    readings = [Reading(client, LONG_IDLE_S) for client in CLIENTS]

    def has_three_signs(reading: Reading) -> bool:
        return len(reading.counted()) >= 4

    async with AsyncExitStack() as stack:
        with stopped(server):
            responses: list[ClientResponse] = []
            for client in CLIENTS:
                responses.append(await stack.enter_async_context(client.post(session, server.url, client.body(""))))
                assert responses[-1].status == 200, client.name
            for reading, response in zip(readings, responses, strict=True):
                await reading.read(response, until=has_three_signs)
            assert all(lane.n_generated == 0 for lane in lanes(server))
        for reading, response in zip(readings, responses, strict=True):
            await reading.read(response)
    for reading in readings:
        check_signs(reading)


def check_signs(reading: Reading) -> None:
    """What came while nothing was computed is what the API has for it."""
    first, *later = reading.counted()[:4]
    match reading.client.path:
        case "/v1/messages?beta=true":
            assert first.name == "message_start"
            assert {event.name for event in later} == {"ping"}
        case "/v1/responses":
            assert first.name == "response.created"
            assert {event.name for event in later} == {"response.in_progress"}
        case _:
            chunks = [event for event in (first, *later) if not event.is_comment]
            assert all(not chunk.json()["choices"][0]["delta"].get("content") for chunk in chunks)


async def test_a_client_that_gets_no_sign_gives_up(make_server: MakeServer) -> None:
    """What these tests would see if there were no signs of life: Codex takes a comment for none."""
    async with (
        slow_server(make_server, keep_alive_s=10.0) as (server, session),
        CODEX.post(session, server.url, CODEX.body("")) as response,
    ):
        with stopped(server), pytest.raises(GaveUpError):
            await Reading(CODEX, idle_s=0.3).read(response)


async def abandon_in_the_middle(server: Server, response: ClientResponse, client: PatientClient) -> int:
    """The client has given up and the engine has been stopped; how much of the prompt it had read by then."""
    await wait_for(lambda: any(lane.n_read > lane.n_prompt // 8 for lane in lanes(server)))
    (pid,) = server.supervisor.engine_pids()
    os.kill(pid, signal.SIGSTOP)
    (lane,) = lanes(server)
    assert lane.n_generated == 0, "the engine was to be stopped before it has read the prompt"
    with pytest.raises(GaveUpError):
        await Reading(client, idle_s=0.3, total_s=0.6).read(response)
    return lane.n_read


async def ask_again(server: Server, session: ClientSession, client: PatientClient, body: dict[str, Any]) -> int:
    """The retry, as this client makes it; how much of it was cached. It is taken in before the engine goes on."""
    n_before = server.supervisor.status().n_requests
    (pid,) = server.supervisor.engine_pids()

    async def go_on() -> None:
        await wait_for(lambda: server.supervisor.status().n_requests > n_before)
        os.kill(pid, signal.SIGCONT)

    async with asyncio.TaskGroup() as group:
        group.create_task(go_on())
        return await read_retry(session, server, client, body)


async def read_retry(session: ClientSession, server: Server, client: PatientClient, body: dict[str, Any]) -> int:
    async with client.post(session, server.url, {**body, "stream": client.retries_streaming}) as response:
        assert response.status == 200, await response.text()
        if not client.retries_streaming:
            return usage_of(await response.json())[1]
        reading = Reading(client, LONG_IDLE_S)
        await reading.read(response)
        return usage_of_stream(reading.events)[1]


@pytest.mark.parametrize(
    "client", [CLIENTS[0], *(pytest.param(c, marks=pytest.mark.full_only) for c in CLIENTS[1:])], ids=lambda c: c.name
)
async def test_a_retry_goes_on_where_the_first_one_stopped(make_server: MakeServer, client: PatientClient) -> None:
    """The old connection is closed first: its lane is free, and what it had read is there."""
    async with slow_server(make_server, keep_alive_s=10.0) as (server, session):
        body = client.body(LONG_MESSAGE)
        async with client.post(session, server.url, body) as response:
            n_read = await abandon_in_the_middle(server, response, client)
            response.close()
        n_cached = await ask_again(server, session, client, body)
        assert n_cached >= n_read * 9 // 10
        await wait_until_idle(server)
        assert server.supervisor.status().n_cancelled == 1
