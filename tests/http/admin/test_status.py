"""/status.json: figures by a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from luce.supervisor.http.admin.status import page_tiers
from luce.supervisor.http.engine_metrics import numbers
from tests.http.conftest import MakeServer
from tests.http.serving import BOUNDED, Server, generating
from tests.http.statuses import engine_status


def parts(tier: dict[str, Any]) -> dict[str, int]:
    return {part["kind"]: part["n"] for part in tier["parts"]}


def test_pages_are_counted_by_tier() -> None:
    engine_metrics = numbers(
        {"cells_used": "65", "pages_resident": "5", "pages_host": "7", "host_bytes": "900", "disk_files": "3",
         "disk_bytes": "4096", "disk_trouble": "none"}
    )  # fmt: skip
    device, host, disk = page_tiers(engine_status(), engine_metrics)
    assert (device["n_total"], parts(device)) == (10, {"running": 2, "kept": 3})
    assert (host["n_total"], parts(host)) == (100, {"pages": 7, "tails": 2})
    assert (disk["n_total"], disk["bytes"], parts(disk)) == (None, 4096, {"files": 3})


def test_pages_that_are_out_of_the_pool_are_told_from_the_host_s_others() -> None:
    engine_metrics: dict[str, int | float | str] = {
        "cells_used": 640,
        "pages_resident": 10,
        "pages_host": 9,
        "pages_out": 7,
    }
    device, host, _ = page_tiers(engine_status(kvflash=640), engine_metrics)
    assert parts(device) == {"running": 10, "kept": 0}
    assert parts(host) == {"out": 7, "pages": 2, "tails": 0}
    # One that two texts miss is told twice, and lies in the host once.
    assert parts(page_tiers(engine_status(kvflash=640), engine_metrics | {"pages_out": 12})[1])["out"] == 9
    assert "out" not in parts(page_tiers(engine_status(), engine_metrics)[1])


def test_figures_with_a_fraction_are_numbers() -> None:
    engine_metrics = {
        "spec_share": "0.2500",
        "spec_steps": "12",
        "disk_trouble": "none",
        "odd": "1.2.3",
        "long": "9" * 400 + ".0",
    }
    assert numbers(engine_metrics) == engine_metrics | {"spec_share": 0.25, "spec_steps": 12}


@pytest.mark.parametrize("engine_metrics", [{"cells_used": 10**6, "pages_resident": 10**6}, {"cells_used": "odd"}])
def test_figures_that_cannot_be_do_not_overfill_a_tier(engine_metrics: dict[str, int | str]) -> None:
    device, *_ = page_tiers(engine_status(), engine_metrics)
    assert 0 <= sum(parts(device).values()) <= 10


def test_an_engine_that_says_nothing_has_no_map() -> None:
    assert page_tiers(engine_status(), {}) == []
    assert page_tiers(engine_status(info=None), {"pages_host": 1}) == []


async def test_the_figures_follow_what_runs(make_server: MakeServer) -> None:
    async with make_server(lanes=1, aliases=("tiny",), max_queue=9) as server, aiohttp.ClientSession() as session:
        before = await (await session.get(f"{server.url}/status.json")).json()
        assert (before["model"], before["ready"], before["max_waiting"]) == ("tiny", True, 9)
        assert before["engines"][0]["running"] == []
        with generating(server, 3):
            seen = await until(session, server.url, is_under_way)
        (lane,) = seen["engines"][0]["running"]
        assert (lane["n_prompt"], lane["n_read"]) == (300, 300)
        ended = await until(session, server.url, lambda seen: seen["requests"]["cancelled"] == 3)
        assert ended["waiting"] == 0


async def test_a_text_that_outgrows_the_pool_is_seen_in_the_host(make_server: MakeServer) -> None:
    async with make_server(**BOUNDED) as server, aiohttp.ClientSession() as session:
        with generating(server, 1, n_prompt=1500):
            seen = await until(session, server.url, lambda seen: n_out(seen) > 0)
        device, host, _ = seen["engines"][0]["tiers"]
        assert device["n_total"] == 640 // 64
        assert sum(parts(device).values()) + n_out(seen) > device["n_total"]
        assert sum(parts(host).values()) >= n_out(seen)
        await until(session, server.url, lambda seen: n_out(seen) == 0 and tiers_of(seen) != [])


def tiers_of(seen: dict[str, Any]) -> list[dict[str, Any]]:
    tiers: list[dict[str, Any]] = seen["engines"][0]["tiers"]
    return tiers


def n_out(seen: dict[str, Any]) -> int:
    return sum(parts(tier).get("out", 0) for tier in tiers_of(seen))


def is_under_way(seen: dict[str, Any]) -> bool:
    """The engine's own figures are those of a moment earlier, and it may be too busy to tell them."""
    (engine,) = seen["engines"]
    return (
        seen["waiting"] == 2
        and written(seen) > 0
        and engine["tiers"] != []
        and parts(engine["tiers"][0])["running"] > 0
    )


def written(seen: dict[str, Any]) -> int:
    return sum(lane["n_generated"] for engine in seen["engines"] for lane in engine["running"])


async def until(session: aiohttp.ClientSession, url: str, condition: Any) -> dict[str, Any]:
    async with asyncio.timeout(120):
        while True:
            answer = await session.get(f"{url}/status.json")
            assert answer.status == 200
            seen: dict[str, Any] = await answer.json()
            if condition(seen):
                return seen


async def test_many_lookers_are_one_look_at_the_engine(server: Server) -> None:
    async with aiohttp.ClientSession() as session:
        answers = await asyncio.gather(*(session.get(f"{server.url}/status.json") for _ in range(50)))
        times = {(await answer.json())["time_s"] for answer in answers}
    assert len(times) < 50
