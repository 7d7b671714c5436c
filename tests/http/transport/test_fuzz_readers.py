"""Readers that stop, stall, reset or say half of what they want: nothing of them is left, and nobody else notices.

Beside them, steady clients ask at temperature 0 and must get the same bytes each time.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import psutil
from aiohttp import ClientSession, ClientTimeout

from tests.http.conftest import MakeServer
from tests.http.raw_client import RawClient, post, raw_client
from tests.http.serving import Server

N_SHORT, N_FULL = 3, 1500
N_AT_ONCE = 12
N_WARM_UP = 3
GROWTH_BYTES = 64 << 20
DEADLINE_S = 120.0

CHAT: dict[str, Any] = {"model": "any", "max_tokens": 300, "stream": True, "messages": []}
SAID = {"role": "user", "content": "Tell a long story."}
BODIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", {**CHAT, "messages": [SAID], "ignore_eos": True}),
    ("/v1/messages", {**CHAT, "messages": [SAID]}),
    ("/v1/responses", {"model": "any", "max_output_tokens": 300, "stream": True, "input": "Tell a long story."}),
    ("/v1/completions", {"model": "any", "max_tokens": 300, "stream": True, "prompt": "Once", "ignore_eos": True}),
    ("/v1/chat/completions", {**CHAT, "messages": [SAID], "ignore_eos": True, "stream": False}),
)


CLOSES = "Connection: close\r\n"


async def read_a_little(client: RawClient, rng: random.Random) -> None:
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        for _ in range(rng.choice((0, 1, 3, 20))):
            async with asyncio.timeout(DEADLINE_S):
                if not await client.reader.read(rng.choice((1, 100, 4096))):
                    return


async def resets(client: RawClient, rng: random.Random, request: bytes) -> None:
    await client.send(request)
    await read_a_little(client, rng)
    client.vanish()


async def stops(client: RawClient, rng: random.Random, request: bytes) -> None:
    """It closes in good order, in the middle."""
    await client.send(request)
    await read_a_little(client, rng)


async def stalls(client: RawClient, rng: random.Random, request: bytes) -> None:
    """It reads no more, until the server has had enough of it or has written all to the kernel."""
    await client.send(request)
    await read_a_little(client, rng)
    await asyncio.sleep(rng.choice((0.0, 0.5, 2.0)))
    client.vanish()


async def shuts_its_half(client: RawClient, rng: random.Random, request: bytes) -> None:
    await client.send(request)
    client.writer.write_eof()
    await read_a_little(client, rng)


async def says_half(client: RawClient, rng: random.Random, request: bytes) -> None:
    await client.send(request[: rng.randrange(1, len(request))])
    client.vanish()


async def asks_again(client: RawClient, rng: random.Random, request: bytes) -> None:
    """A second request on the same connection before the first one's answer is read."""
    await client.send(request + request)
    await read_a_little(client, rng)
    client.vanish()


Behaviour = Callable[[RawClient, random.Random, bytes], Awaitable[None]]
BEHAVIOURS: tuple[Behaviour, ...] = (resets, stops, stalls, shuts_its_half, says_half, asks_again)


async def misbehave(server: Server, seed: int) -> None:
    rng = random.Random(seed)
    path, body = rng.choice(BODIES)
    body = {**body, "max_tokens" if "max_tokens" in body else "max_output_tokens": rng.choice((1, 50, 300))}
    async with raw_client(server.url, receive_buffer=rng.choice((None, 2048))) as client:
        with suppress(ConnectionError):
            await rng.choice(BEHAVIOURS)(client, rng, post(path, body, headers=CLOSES))


async def misbehave_all(server: Server, first: int, n: int) -> None:
    seeds = iter(range(first, first + n))

    async def work() -> None:
        for seed in seeds:
            await misbehave(server, seed)

    async with asyncio.TaskGroup() as group:
        for _ in range(N_AT_ONCE):
            group.create_task(work())


async def content(client: ClientSession, server: Server, body: dict[str, Any]) -> str:
    """What a stream says, once it has come to its end."""
    async with client.post(f"{server.url}/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        text = await response.text()
    assert text.rstrip().endswith("data: [DONE]"), text[-300:]
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


async def steady_bodies(client: ClientSession, server: Server) -> list[dict[str, Any]]:
    """Two whose answers hang on no near-tie: what batching does to logits cannot change them."""
    async with client.post(f"{server.url}/tokenize", json={"content": " the"}) as response:
        word = (await response.json())["tokens"][-1]
    greedy = {"model": "any", "stream": True, "temperature": 0}
    return [
        {**greedy, "max_tokens": 64, "messages": [{"role": "user", "content": "Who are you?"}]},
        {**greedy, "max_tokens": 150, "ignore_eos": True, "logit_bias": {str(word): 100}, "messages": [SAID]},
    ]


async def stay_steady(
    client: ClientSession, server: Server, body: dict[str, Any], expected: str
) -> AsyncGenerator[int, None]:
    n = 0
    while True:
        assert await content(client, server, body) == expected
        n += 1
        yield n


async def test_bad_readers(make_server: MakeServer, full: bool) -> None:
    async with (
        make_server(lanes=4, ctx=1024, pool=4096, stalled_reader_s=1.0, keep_alive_s=0.5) as server,
        ClientSession(timeout=ClientTimeout(total=DEADLINE_S)) as client,
    ):
        bodies = await steady_bodies(client, server)
        expected = [await content(client, server, body) for body in bodies]
        assert all(expected)
        await misbehave_all(server, 10**6, N_WARM_UP)
        before = await settle(server)
        memory = psutil.Process().memory_info().rss
        n_steady = 0
        trouble = asyncio.create_task(misbehave_all(server, 0, N_FULL if full else N_SHORT))
        steady = [stay_steady(client, server, body, text) for body, text in zip(bodies, expected, strict=True)]
        while not trouble.done():
            await asyncio.gather(*(anext(each) for each in steady))
            n_steady += 1
        await trouble
        for each in steady:
            await each.aclose()
        assert n_steady > 0
        await until_at_most(server, before)
        assert psutil.Process().memory_info().rss - memory < GROWTH_BYTES
        status = server.supervisor.status()
        assert status.engines[0].n_deaths == 0
        assert status.n_failed == 0
        assert [await content(client, server, body) for body in bodies] == expected


async def settle(server: Server) -> tuple[int, int]:
    """Until nothing of those that have gone is left: then the server's tasks and this process's open files."""
    async with asyncio.timeout(DEADLINE_S):
        while not is_settled(server):  # noqa: ASYNC110  what another thread does
            await asyncio.sleep(0.05)
    gc.collect()
    return await asyncio.to_thread(server.call, count_tasks), psutil.Process().num_fds()


async def until_at_most(server: Server, before: tuple[int, int]) -> None:
    """A connection that a steady client keeps for its next request may be one more, until it is given up."""
    async with asyncio.timeout(DEADLINE_S):
        while any(now > then for now, then in zip(await settle(server), before, strict=True)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def is_settled(server: Server) -> bool:
    status = server.supervisor.status()
    return not status.n_waiting and not status.engines[0].n_running and len(server_connections(server)) <= 1


async def count_tasks() -> int:
    return len(asyncio.all_tasks())


def server_connections(server: Server) -> list[Any]:
    """Established or half-closed ones at the server's port."""
    port = int(server.url.rpartition(":")[2])
    connections = psutil.Process().net_connections("tcp")
    return [each for each in connections if each.laddr.port == port and each.status != psutil.CONN_LISTEN]
