"""luce.ray on a real Ray: replicas, ingress and raylet killed in mid-stream; the way through Serve's proxy.

Left out where Ray is not installed: its start alone takes as long as many other tests (`pip install '.[ray]'`).
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable

import pytest

from tests.ray.local_cluster import (
    ENGINE,
    INGRESS,
    RAYLET,
    BrokenError,
    LocalCluster,
    body_of,
    local_cluster,
    stream,
    until_served,
)

pytest.importorskip("ray.serve", reason="left out: Ray is not installed (pip install '.[ray]')", exc_type=ImportError)


async def streams_while(cluster: LocalCluster, seeds: range, kill: Callable[[], None]) -> list[str | BrokenError]:
    """Several at once; `kill` is called when the first of them has some tokens."""
    killed = False

    def note(n_pieces: int) -> None:
        nonlocal killed
        if n_pieces >= 5 and not killed:
            killed = True
            kill()

    async def one(seed: int) -> str | BrokenError:
        try:
            return await stream(cluster.url, body_of(seed), note)
        except BrokenError as error:
            return error

    answers = await asyncio.gather(*map(one, seeds))
    assert killed
    return answers


async def test_a_replica_is_killed_in_mid_stream_and_the_proxy_says_the_same() -> None:
    with local_cluster(replicas=2, proxy="HeadOnly") as cluster:
        undisturbed = [await stream(cluster.url, body_of(seed)) for seed in range(2)]
        await until_served(cluster.proxy_url)
        assert await stream(cluster.proxy_url, body_of(0)) == undisturbed[0]
        victim = cluster.pids(ENGINE)[0]
        answers = await streams_while(cluster, range(2), lambda: os.kill(victim, signal.SIGKILL))
        assert answers == undisturbed


async def test_thirty_kills_in_turns(*, full: bool) -> None:
    """Of replicas, of the ingress and of a raylet: each stream has the tokens of the undisturbed run, but for those of
    an ingress that is killed, which break with an error."""
    if not full:
        pytest.skip("left out: --full kills thirty times")
    n_rounds = int(os.environ.get("LUCE_TEST_KILLS", "30"))
    draw = random.Random(1)
    with local_cluster(nodes=2, replicas=3) as cluster:
        undisturbed = [await stream(cluster.url, body_of(seed)) for seed in range(4)]
        for number in range(n_rounds):
            what = (ENGINE, INGRESS, RAYLET)[number % 3]
            pids = cluster.pids(what)
            victim = draw.choice(pids[1:] if what == RAYLET else pids)  # the head's raylet is the oldest
            answers = await streams_while(cluster, range(4), lambda: os.kill(victim, signal.SIGKILL))  # noqa: B023
            if what == INGRESS:
                assert all(isinstance(answer, BrokenError) or answer in undisturbed for answer in answers)
                assert any(isinstance(answer, BrokenError) for answer in answers)
            else:
                assert answers == undisturbed, f"round {number}, {what}"
            if what == RAYLET:
                await asyncio.to_thread(cluster.add_node)
            await until_served(cluster.url)
            print(f"round {number}: {what} killed", flush=True)
