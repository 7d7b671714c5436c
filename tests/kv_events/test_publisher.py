"""KV events over real sockets, of real engines: a subscriber that only reads them knows what is held."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from luce.supervisor import ConfigError, Supervisor, SupervisorConfig
from luce.supervisor.kv_events.block_events import block_hash
from luce.supervisor.kv_events.config import Endpoint, KvEventsConfig
from luce.supervisor.kv_events.publisher import KvEventPublisher
from tests.kv_events.subscriber import Subscriber, replayed
from tests.supervisor.streams import collect, request

LOOPBACK = Endpoint("tcp://127.0.0.1:0")
PAGE_TOKENS = 64
DEADLINE_S = 60.0


@pytest.fixture
def small(tiny_model: Path, tmp_path: Path) -> SupervisorConfig:
    """Room for a few texts on the device, some in the host, some on disk."""
    return SupervisorConfig(
        model=tiny_model,
        ctx=512,
        pool=1024,
        lanes=2,
        threads=1,
        no_warmup=True,
        host_cache=1 << 19,
        disk_cache=tmp_path / "cache",
        disk_budget=1 << 20,
        log_level="warn",
        restart_delay_s=0.01,
        ping_interval_s=0.05,
    )


@asynccontextmanager
async def published(
    config: SupervisorConfig, **settings: Any
) -> AsyncIterator[tuple[Supervisor, KvEventPublisher, Callable[..., Subscriber]]]:
    values: dict[str, Any] = {"endpoint": LOOPBACK, "replay": LOOPBACK, "topic": "kv@pod@tiny"}
    async with KvEventPublisher(KvEventsConfig(**(values | settings))) as publisher, Supervisor(config) as supervisor:
        publisher.watch(supervisor.watch_pages())
        yield supervisor, publisher, lambda **how: Subscriber(publisher.endpoint, publisher.replay_endpoint, **how)


async def load(supervisor: Supervisor, n_requests: int, seed: int) -> None:
    """Conversations that share beginnings, go on, and push each other out."""
    draw = random.Random(seed)
    system = [[draw.randrange(2, 8000) for _ in range(150)] for _ in range(3)]
    texts: list[list[int]] = []

    async def one() -> None:
        known = draw.choice(texts) if texts and draw.random() < 0.5 else draw.choice(system)
        prompt = (known + [draw.randrange(2, 8000) for _ in range(draw.randrange(1, 120))])[:450]
        texts.append(prompt)
        await collect(supervisor, request(prompt_ids=tuple(prompt), max_tokens=draw.randrange(1, 20)))

    for _ in range(n_requests // 2):
        await asyncio.gather(one(), one())


async def agree(supervisor: Supervisor, subscriber: Subscriber) -> None:
    """Once the engines have nothing more to move: the events tell what the engines list."""
    listed: dict[str, int] = {}
    try:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                await subscriber.catch_up()
                listings = [listing for listing in await supervisor.texts() if listing is not None]
                runs = [run for listing in listings for run in listing.runs]
                listed = {
                    "GPU": sum(run.n_device for run in runs),
                    "CPU": sum(run.n_host for run in runs),
                    "DISK": sum(run.n_disk for run in runs),
                }
                held = subscriber.held
                n_pages = sum((run.end - run.begin) // PAGE_TOKENS for run in runs)
                if held.counts == listed and len(held.all) == n_pages:
                    break
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"the events tell of {subscriber.held.counts}, the engines of {listed}")
    for run in runs:
        last = block_hash(bytes.fromhex(run.page))
        assert last in held.all
        text = held.text(last)
        assert len(text) == run.end
        begins = range(run.begin, run.begin + PAGE_TOKENS)  # where it differs from what branches off beside it
        n_shown = len(run.first_tokens)
        assert any(text[begin : begin + n_shown] == run.first_tokens for begin in begins)


async def test_a_subscriber_knows_what_is_held_also_after_missed_messages(small: SupervisorConfig) -> None:
    """What is not kept for a replay any more is made up for by a listing of all."""
    async with published(small, buffer_steps=8) as (supervisor, publisher, subscribe):
        draw = random.Random(5)
        async with subscribe() as steady, subscribe(misses=lambda _: draw.random() < 0.3, topic="kv@") as forgetful:
            await load(supervisor, 20, seed=1)
            await agree(supervisor, steady)
            await agree(supervisor, forgetful)
            assert steady.held.kinds["BlockRemoved"] >= 5, "nothing has left: the load is too small"
            assert all(steady.held.counts.values()), "each tier holds something"
            assert forgetful.n_missed > 0
            assert forgetful.n_replayed > 0
            assert steady.topics == {b"kv@pod@tiny"}
            async with subscribe() as late:
                await agree(supervisor, late)
                assert late.n_replayed < publisher.n_published // 2, "not one message for each that there was"


async def test_an_engine_that_is_killed_holds_nothing_and_another_tells_anew(small: SupervisorConfig) -> None:
    config = replace(small, disk_cache=None, disk_budget=None)
    async with published(config) as (supervisor, _, subscribe), subscribe() as subscriber:
        await load(supervisor, 4, seed=3)
        await agree(supervisor, subscriber)
        n_cleared = subscriber.held.kinds["AllBlocksCleared"]
        os.kill(supervisor.engine_pids()[0], signal.SIGKILL)
        await load(supervisor, 4, seed=4)
        await agree(supervisor, subscriber)
        assert subscriber.held.kinds["AllBlocksCleared"] == n_cleared + 1


async def test_several_engines_are_one_to_a_router(small: SupervisorConfig) -> None:
    """What both hold is told once, and stays held when one of them dies."""
    config = replace(small, disk_cache=None, disk_budget=None, engines=[{}, {}])
    same = request(prompt_ids=tuple(range(2, 302)), max_tokens=1)
    async with published(config) as (supervisor, _, subscribe), subscribe() as subscriber:
        while not all(listing.n_runs for listing in await supervisor.texts() if listing is not None):
            await asyncio.gather(*(collect(supervisor, replace(same, client=f"{i}")) for i in range(4)))
        await subscriber.catch_up()
        assert len(subscriber.held.all) == 300 // PAGE_TOKENS
        assert subscriber.held.n_stored["GPU"] == 300 // PAGE_TOKENS, "by both, but told once"
        before = subscriber.held.all
        os.kill(supervisor.engine_pids()[0], signal.SIGKILL)
        await collect(supervisor, same)
        await subscriber.catch_up()
        assert subscriber.held.all == before


async def test_tokens_may_stay_and_media_may_be_one(small: SupervisorConfig) -> None:
    async with published(small, tells_tokens=False, media="one") as (supervisor, _, subscribe), subscribe() as router:
        await load(supervisor, 4, seed=6)
        held = router.held
        async with asyncio.timeout(DEADLINE_S):
            while True:
                await router.catch_up()
                runs = [run for listing in await supervisor.texts() if listing is not None for run in listing.runs]
                if len(held.all) == sum((run.end - run.begin) // PAGE_TOKENS for run in runs):
                    break
                await asyncio.sleep(0.05)
        assert set(held.blocks) == {"GPU"}
        assert not any(held.tokens.values())
        assert held.all >= {block_hash(bytes.fromhex(run.page)) for run in runs}


async def test_an_endpoint_that_is_taken_is_said() -> None:
    async with KvEventPublisher(KvEventsConfig(endpoint=LOOPBACK)) as first:
        with pytest.raises(ConfigError, match=r"kv_events: .*Address already in use"):
            async with KvEventPublisher(KvEventsConfig(endpoint=Endpoint(first.endpoint))):
                pass


async def test_who_asks_with_too_much_is_cut_off() -> None:
    async with KvEventPublisher(KvEventsConfig(endpoint=LOOPBACK, replay=LOOPBACK)) as publisher:
        with zmq.Context() as context, context.socket(zmq.DEALER) as flooding:
            flooding.linger = 0
            with flooding.get_monitor_socket(zmq.EVENT_DISCONNECTED) as cut_off:
                flooding.connect(publisher.replay_endpoint)
                flooding.send_multipart([bytes(1 << 20), bytes(8)])
                assert await asyncio.to_thread(cut_off.poll, round(DEADLINE_S * 1000))
                flooding.disable_monitor()
        assert await asyncio.to_thread(replayed, publisher.replay_endpoint) == [["AllBlocksCleared"]]


@pytest.mark.parametrize("text", ["5557", "tcp://host", "http://a:1", "tcp://:1", "connect:5557", ""])
def test_what_is_no_endpoint_is_said(text: str) -> None:
    with pytest.raises(ConfigError, match="no endpoint"):
        Endpoint.of(text)


@pytest.mark.parametrize(
    ("text", "is_exposed"),
    [
        ("tcp://127.0.0.1:1", False),
        ("tcp://[::1]:1", False),
        ("ipc:///tmp/a", False),
        ("connect:tcp://router:1", False),
        ("tcp://*:1", True),
        ("tcp://10.0.0.1:1", True),
    ],
)
def test_only_loopback_is_not_exposed(text: str, is_exposed: bool) -> None:
    assert Endpoint.of(text).is_exposed == is_exposed


async def test_an_hour_of_load(small: SupervisorConfig, full: bool) -> None:
    if not full:
        pytest.skip("an hour: --full")
    async with published(small, buffer_steps=500) as (supervisor, publisher, subscribe):
        draw = random.Random(7)
        async with subscribe() as steady, subscribe(misses=lambda _: draw.random() < 0.1) as forgetful:
            end_s, round_ = time.monotonic() + 3600, 0
            while time.monotonic() < end_s:
                round_ += 1
                await load(supervisor, 100, seed=round_)
                if round_ % 5 == 0:
                    os.kill(supervisor.engine_pids()[0], signal.SIGKILL)
                await agree(supervisor, steady)
                await agree(supervisor, forgetful)
            print(f"{publisher.n_published} batches, {steady.held.kinds}, {forgetful.n_missed} missed")
