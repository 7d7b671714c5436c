"""One store for several engines, for several models, and within a rate."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from luce.supervisor import Supervisor
from luce.supervisor.engine.watchdog import EngineState
from luce.supervisor.fleet.fleet import Fleet, FleetConfig, Member
from tests.cache_store.conftest import Replica, ask, counts_of, lane_taken, text, until, written


async def all_ready(supervisor: Supervisor) -> None:
    await until(lambda: all(engine.state is EngineState.READY for engine in supervisor.status().engines))


def files_below(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*.page")}


async def test_each_engine_finds_it_in_its_own_folder(replica: Replica, tmp_path: Path) -> None:
    """Of two, whose memories are of two formats."""

    def engines(name: str) -> list[dict[str, object]]:
        return [
            {"disk_cache": tmp_path / f"{name} plain", "cache_type_k": "f16"},
            {"disk_cache": tmp_path / f"{name} packed", "cache_type_k": "q8_0"},
        ]

    store, prompts = (tmp_path / "store").as_uri(), (text(40), text(41))
    async with Supervisor(replica("first", store=store, engines=engines("first"))) as first:
        await all_ready(first)
        expected = await asyncio.gather(*(ask(first, prompt) for prompt in prompts))
        await written(first, 2 * len(prompts[0]))
    assert len(list((tmp_path / "store").iterdir())) == 2
    n_objects = sum(path.is_file() for path in (tmp_path / "store").rglob("*"))
    async with Supervisor(replica("second", store=store, engines=engines("second"))) as second:
        await all_ready(second)
        await until(lambda: second.status().cache_stores[0].n_files == n_objects)
        async with AsyncExitStack() as other:
            async with AsyncExitStack() as plain:
                await plain.enter_async_context(lane_taken(second))
                await other.enter_async_context(lane_taken(second))
                asked = [asyncio.create_task(ask(second, prompts[0]))]
                await until(lambda: counts_of(second).n_helped == 1)
            told = await asked[0]
        assert (told.tokens, told.final.tier) == (expected[0].tokens, "disk")
        assert files_below(tmp_path / "second plain") >= files_below(tmp_path / "first plain")
        assert not files_below(tmp_path / "second packed")


async def test_a_model_that_comes_finds_what_was_written(replica: Replica, tmp_path: Path) -> None:
    """Two models that are one, of which one place has room for one at a time."""
    store, prompt = (tmp_path / "store").as_uri(), text(42, 700)
    members = [Member(name=name, config=replica(name, store=store)) for name in ("left", "right")]
    async with Fleet(FleetConfig(members=members)) as fleet:
        left, right = fleet.supervisors.values()
        expected = await ask(left, prompt)
        await written(left, len(prompt))
        assert right.engine_pids() == []
        async with lane_taken(right):  # or else the prompt might be read before the store has been asked
            asked = asyncio.create_task(ask(right, prompt))
            await until(lambda: counts_of(right).n_helped + counts_of(right).n_late == 1)
        assert (await asked).tokens == expected.tokens
        assert (await ask(left, prompt)).tokens == expected.tokens


async def test_a_rate_holds(replica: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first one the next waits for longer than anybody lives."""
    monkeypatch.setattr("luce.supervisor.cache_store.cache_store._LAST_WRITES_S", 0.1)
    slow = replica("slow", store=(tmp_path / "store").as_uri(), cache_store_rate=1)
    async with Supervisor(slow) as supervisor:
        await ask(supervisor, text(43))
        await until(lambda: counts_of(supervisor).n_written == 1)
        await ask(supervisor, text(44))
        await until(lambda: supervisor.status().cache_stores[0].n_waiting > 0)
        assert counts_of(supervisor).n_written == 1
