"""Conversations that travel: what one server has computed, another that has just started goes on from."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from luce.supervisor import Supervisor
from luce.supervisor.requests import TextSalt
from luce.supervisor.scheduling.prices import EnginePrices, FetchPrice
from tests.cache_store.conftest import (
    Cloud,
    FaultyProxy,
    Replica,
    Told,
    ask,
    ask_later,
    counts_of,
    text,
    until,
    written,
)

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body")  # by the proxy, which is here to be slow
FAULTS = ("error", "reset", "flip", "cut", "swap")


def hurt(supervisor: Supervisor) -> int:
    """Objects that were refused, or did not come."""
    counts = counts_of(supervisor)
    return counts.n_refused + counts.n_failures


async def told_without(replica: Replica, *prompts: list[int]) -> list[Told]:
    async with Supervisor(replica("without", store=None)) as supervisor:
        return [await ask(supervisor, prompt) for prompt in prompts]


async def ask_one_that_stands_still(supervisor: Supervisor, prompt: list[int], holds: Callable[[], bool]) -> Told:
    """The engine has the prompt, and reads on once that holds."""
    asked = asyncio.create_task(ask(supervisor, prompt))
    await until(lambda: supervisor.status().engines[0].n_running == 1)
    (pid,) = supervisor.engine_pids()
    os.kill(pid, signal.SIGSTOP)
    try:
        await until(holds)
    finally:
        os.kill(pid, signal.SIGCONT)
    return await asked


async def test_a_fresh_server_answers_warm(replica: Replica, tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    one, isolated = text(1), text(2)
    async with Supervisor(replica("first", store=store)) as first:
        expected = await ask(first, one)
        await written(first, len(one))
        expected_isolated = await ask(first, isolated, salt=TextSalt(5))
    # Left at once: what the engine has put on disk before it ended is in the store too.
    pages = {path.name for path in (tmp_path / "first").rglob("*.page")}
    assert len(pages) > len(one) // 64
    assert {path.name for path in (tmp_path / "store").rglob("*.page")} == pages
    async with Supervisor(replica("second", store=store)) as second:
        await until(lambda: second.status().cache_stores[0].is_listed)
        told = await ask_later(second, one, lambda: counts_of(second).n_helped == 1)
        assert told.tokens == expected.tokens
        assert told.final.tier == "disk"
        assert told.final.n_reused >= len(one) - 1
        n_fetched = counts_of(second).n_fetched
        # Names say whose it is: nobody else finds it, and who has written it does.
        for salt in (None, TextSalt(6)):
            assert (await ask(second, isolated, salt=salt)).final.n_reused == 0
        assert counts_of(second).n_fetched == n_fetched
        own = await ask_later(second, isolated, lambda: counts_of(second).n_helped == 2, salt=TextSalt(5))
        assert (own.tokens, own.final.tier) == (expected_isolated.tokens, "disk")
        await until(lambda: second.status().cache_stores[0].n_waiting == 0)
    # Nothing is written that is there.
    async with Supervisor(replica("second", store=store)) as again:
        assert (await ask(again, one)).tokens == expected.tokens
        await until(lambda: again.status().cache_stores[0].is_listed and again.status().cache_stores[0].n_waiting == 0)
        assert counts_of(again).n_written <= 2


async def test_a_reading_is_broken_off_for_what_has_come(
    replica: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine stands still from the first slice on, so that the files are there before it has read the prompt. Where
    reading costs less than coming back from there, it reads on."""
    store, prompt, other = (tmp_path / "store").as_uri(), text(3, 1500), text(8, 1500)
    slices = {"ubatch": 128}  # one of them takes less than a prompt
    async with Supervisor(replica("first", store=store, **slices)) as first:
        expected, expected_other = await ask(first, prompt), await ask(first, other)
        await written(first, len(prompt) + len(other))
    patient = {"stopped_timeout_s": 600.0, "asleep_timeout_s": 600.0}
    async with Supervisor(replica("second", store=store, **slices, **patient)) as second:
        await until(lambda: second.status().cache_stores[0].n_files > 0)
        told = await ask_one_that_stands_still(second, prompt, lambda: counts_of(second).n_fetched >= len(prompt) // 64)
        assert told.tokens == expected.tokens
        assert (told.final.tier, told.final.n_resumes) == ("disk", 1)
        assert told.final.n_reused >= len(prompt) - 1
        monkeypatch.setattr(EnginePrices, "read_s", lambda _, n_tokens: 1e-9 * n_tokens)
        monkeypatch.setattr(FetchPrice, "fetch_s", lambda *_: None)  # nobody knows, so it is tried
        told = await ask_one_that_stands_still(second, other, lambda: counts_of(second).n_late == 1)
        assert told.tokens == expected_other.tokens
        assert (told.final.n_reused, told.final.n_resumes) == (0, 0)


async def test_what_was_written_a_moment_ago_is_found_by_its_name(
    replica: Replica, s3: tuple[str, FaultyProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second server has listed an empty store, and does not list it again."""
    monkeypatch.setattr("luce.supervisor.cache_store.upkeep._EVERY_S", 3600.0)
    store, proxy = s3
    prompt = text(4, 700)
    async with Supervisor(replica("second", store=store)) as second:
        await until(lambda: second.status().cache_stores[0].is_listed)
        async with Supervisor(replica("first", store=store)) as first:
            expected = await ask(first, prompt)
            await written(first, len(prompt))
        assert second.status().cache_stores[0].n_files == 0
        told = await ask_later(second, [*prompt, *text(5, 20)], lambda: counts_of(second).n_helped == 1)
        assert told.final.tier == "disk"
        assert told.final.n_reused >= len(prompt) - 1
        assert (await ask(second, prompt)).tokens == expected.tokens
        # What nobody has is asked for once, what cannot be asked for is read.
        n_looks = proxy.n_looks
        await ask_later(second, text(6, 700), lambda: proxy.n_looks > n_looks)
        await until(lambda: second.status().cache_stores[0].n_waiting == 0)
        assert proxy.n_looks == n_looks + 1
        proxy.fault = "error"
        told = await ask_later(second, text(7, 700), lambda: counts_of(second).n_failures > 0)
        assert told.final.n_reused == 0


@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
async def test_faults_cost_a_reading_and_no_token(replica: Replica, cloud: Cloud, kind: str, full: bool) -> None:
    if kind != "s3" and not full:
        pytest.skip("--full")
    async with cloud(kind) as (store, proxy):
        await go_through_faults(replica, store, proxy)


async def go_through_faults(replica: Replica, store: str, proxy: FaultyProxy) -> None:
    prompts = [text(10 + i) for i in range(len(FAULTS) + 3)]
    expected = await told_without(replica, *prompts)
    async with Supervisor(replica("first", store=store)) as first:
        for prompt in prompts:
            await ask(first, prompt)
        await written(first, sum(map(len, prompts)))
    async with Supervisor(replica("second", store=store)) as second:
        await until(lambda: second.status().cache_stores[0].n_files > 0)
        told = await ask_later(second, prompts[0], lambda: counts_of(second).n_helped == 1)
        assert (told.tokens, told.final.tier) == (expected[0].tokens, "disk")
        for fault, prompt, right in zip(FAULTS, prompts[1:], expected[1:], strict=False):
            proxy.fault = fault
            n_hurt = hurt(second)
            told = await ask_later(second, prompt, lambda n_hurt=n_hurt: hurt(second) > n_hurt)  # type: ignore[misc]
            assert told.tokens == right.tokens, fault
        # It never answers: the prompt is read, and does not wait.
        proxy.fault = "slow"
        n_late, n_hit = counts_of(second).n_late, proxy.n_hit
        told = await ask(second, prompts[-2])
        assert told.tokens == expected[-2].tokens
        await until(lambda: counts_of(second).n_late > n_late or counts_of(second).n_dear > 0)
        assert proxy.n_hit >= n_hit
        proxy.fault = "none"
        proxy.lets_go.set()
        assert (await ask(second, prompts[-1])).tokens == expected[-1].tokens


async def test_a_store_that_is_not_there_is_said_once(
    replica: Replica,
    s3: tuple[str, FaultyProxy],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("luce.supervisor.cache_store.upkeep._EVERY_S", 0.1)
    store, proxy = s3
    proxy.fault = "list"
    (expected,) = await told_without(replica, text(30))
    async with Supervisor(replica("alone", store=store)) as supervisor:
        assert (await ask(supervisor, text(30))).tokens == expected.tokens
        await until(lambda: counts_of(supervisor).n_failures > 0)
        assert not supervisor.status().cache_stores[0].is_listed
        proxy.fault = "none"
        await until(lambda: supervisor.status().cache_stores[0].is_listed)
    said = [record.message for record in caplog.records if record.name == "luce.cache_store"]
    assert len([line for line in said if "listing failed" in line]) == 1
