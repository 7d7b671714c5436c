"""luce.ray on a real Ray: replicas that come and go with the load, and what they remember when they go.

Left out where Ray is not installed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.ray.local_cluster import ENGINE, TIMEOUT_S, LocalCluster, body_of, local_cluster, stream

pytest.importorskip("ray.serve", reason="left out: Ray is not installed (pip install '.[ray]')", exc_type=ImportError)

N_STREAMS = 20  # of lanes a replica has 8
AUTOSCALING = {
    "min_replicas": 1,
    "max_replicas": 3,
    "look_back_period_s": 2.0,
    "upscale_delay_s": 0.5,
    "downscale_delay_s": 2.0,
}
SHORT, LONG = 150, 500


@pytest.fixture(autouse=True)
def only_in_full(*, full: bool) -> None:
    if not full:
        pytest.skip("left out: --full starts a Ray")


class Conversation:
    def __init__(self, number: int) -> None:
        self._name = f"conversation {number}"
        self._messages: list[dict[str, str]] = []
        self.n_prompt = self.n_cached = self.n_total = 0
        """Of the last turn, the last with its answer."""

    async def turn(self, url: str, words: str) -> None:
        self._messages.append({"role": "user", "content": f"{self._name}: {words}"})
        body = {"messages": self._messages, "max_tokens": 32, "temperature": 0, "prompt_cache_key": self._name}
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(f"{url}/v1/chat/completions", json=body) as response,
        ):
            answer: dict[str, Any] = await response.json()
            assert response.status == 200, answer
        self._messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"] or ""})
        usage = answer["usage"]
        self.n_prompt, self.n_total = usage["prompt_tokens"], usage["total_tokens"]
        self.n_cached = usage["prompt_tokens_details"]["cached_tokens"]


async def until(what: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            if await what():
                return
            await asyncio.sleep(0.2)


async def n_ready(cluster: LocalCluster) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"{cluster.url}/health") as response:
        states: list[str] = (await response.json())["engines"]
        return states.count("ready")


async def pids(cluster: LocalCluster) -> set[int]:
    return set(await asyncio.to_thread(cluster.pids, ENGINE))


async def turns(cluster: LocalCluster, conversations: Sequence[Conversation], words: str) -> None:
    await asyncio.gather(*(one.turn(cluster.url, words) for one in conversations))


async def test_replicas_come_and_go_with_the_load_and_streams_and_conversations_stay(tmp_path: Path) -> None:
    """One replica, three of them, one again. Streams end with the tokens of the undisturbed run, and what replicas
    remembered that have gone the last one has from the disk cache that they shared."""
    luce = {"disk_cache": str(tmp_path), "lanes": 8}
    with local_cluster(autoscaling=AUTOSCALING, drain_s=0.5, luce=luce) as cluster:
        short_ones = [{**body_of(seed), "max_tokens": SHORT} for seed in range(4)]
        long_ones = [{**body_of(100 + seed), "max_tokens": LONG} for seed in range(3)]
        undisturbed = await asyncio.gather(*(stream(cluster.url, body) for body in short_ones))
        undisturbed_long = await asyncio.gather(*(stream(cluster.url, body) for body in long_ones))
        has_grown = asyncio.Event()

        async def load(number: int) -> None:
            while not has_grown.is_set():
                assert await stream(cluster.url, short_ones[number % 4]) == undisturbed[number % 4]

        async with asyncio.TaskGroup() as group:
            for number in range(N_STREAMS):
                group.create_task(load(number))

            async def has_three() -> bool:
                return await n_ready(cluster) == 3

            await until(has_three)
            conversations = [Conversation(number) for number in range(9)]
            await turns(cluster, conversations, "red blue one two " * 60)
            has_grown.set()
        running = [asyncio.create_task(stream(cluster.url, body)) for body in long_ones]

        async def has_one() -> bool:
            return len(await pids(cluster)) == 1

        await until(has_one)
        assert await asyncio.gather(*running) == undisturbed_long
        known = [one.n_total for one in conversations]
        await turns(cluster, conversations, "who are you?")
        assert [one.n_cached for one in conversations] == pytest.approx(known, rel=0.1)


async def test_what_replicas_remembered_comes_from_the_cache_store_once_they_are_gone(tmp_path: Path) -> None:
    """The next version's have another disk cache. Texts of thousands of tokens: no prompt waits, so that shorter
    ones may be read sooner than fetched."""
    pytest.importorskip("obstore")
    luce = {"disk_cache": str(tmp_path / "first"), "cache_store": (tmp_path / "store").as_uri()}
    (tmp_path / "store").mkdir()
    with local_cluster(replicas=2, luce=luce) as cluster:
        conversations = [Conversation(number) for number in range(4)]
        await turns(cluster, conversations, "red blue one two " * 600)
        before = await pids(cluster)
        await asyncio.to_thread(cluster.deploy, disk_cache=str(tmp_path / "second"))

        async def all_are_new() -> bool:
            return not before & await pids(cluster)

        await until(all_are_new)
        n_pages = sum(one.n_total // 64 - 1 for one in conversations)
        assert sum(path.is_file() for path in (tmp_path / "store").rglob("*")) >= n_pages
        known = [one.n_total for one in conversations]
        await turns(cluster, conversations, "who are you?")
        assert [one.n_cached for one in conversations] == pytest.approx(known, rel=0.1)
