"""Engines give their memory back, by themselves or when told, and texts go to files and come back: nothing is lost."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from luce.supervisor import ConfigError, RequestRefusedError, Supervisor, SupervisorConfig
from luce.supervisor.engine.watchdog import Liveness
from tests.supervisor.streams import PROMPT, FaultyEngine, collect, first_token, request, until

LONG = tuple(2 + i * 7 % 8000 for i in range(700))


@pytest.fixture
async def supervisor(brisk: SupervisorConfig) -> AsyncIterator[Supervisor]:
    async with Supervisor(brisk) as running:
        yield running


def is_parked(running: Supervisor) -> bool:
    return running.status().engines[0].is_parked


def resident_bytes(running: Supervisor) -> int:
    """With the pages of its file that it has mapped, whoever else has."""
    return psutil.Process(running.engine_pids()[0]).memory_info().rss


async def test_an_idle_engine_sleeps_and_the_next_request_wakes_it(brisk: SupervisorConfig) -> None:
    async with Supervisor(dataclasses.replace(brisk, sleep_idle_s=0.2)) as running:
        first = await collect(running, request(prompt_ids=LONG))
        n_awake = resident_bytes(running)
        await until(lambda: resident_bytes(running) < n_awake - (1 << 20), "it sleeps, and its weights are gone")
        assert is_parked(running)
        again = await collect(running, request(prompt_ids=LONG))
        assert again.tokens == first.tokens
        assert again.end.n_reused > 600, "what it knew it still knows"
        await until(lambda: is_parked(running), "it sleeps again")
        assert running.status().engines[0].n_deaths == 0


async def test_how_far_a_load_is_counts_as_a_sign_of_life(
    faulty: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing answers a ping while weights are read from a slow disk."""
    seen: list[bool] = []
    tick = Liveness.tick

    def noted(self: Liveness, elapsed_s: float, *, loads: bool, **other: bool) -> None:
        seen.append(loads)
        tick(self, elapsed_s, loads=loads, **other)

    monkeypatch.setattr(Liveness, "tick", noted)
    async with Supervisor(faulty(LOADS="0.3")) as running:
        first = await collect(running, request(prompt_ids=LONG))
        assert not any(seen)
        await running.park()
        assert (await collect(running, request(prompt_ids=LONG))).tokens == first.tokens
    assert any(seen)


async def test_requests_that_come_together_wake_it_once(brisk: SupervisorConfig) -> None:
    async with Supervisor(dataclasses.replace(brisk, sleep_idle_s=0.1)) as running:
        await until(lambda: is_parked(running), "it sleeps")
        answers = await asyncio.gather(*(collect(running, request(prompt_ids=LONG[n:])) for n in range(6)))
        assert [len(answer.tokens) for answer in answers] == [20] * 6


async def test_an_engine_that_dies_in_its_sleep_is_there_for_the_next_request(brisk: SupervisorConfig) -> None:
    async with Supervisor(dataclasses.replace(brisk, sleep_idle_s=0.1)) as running:
        await until(lambda: is_parked(running), "it sleeps")
        os.kill(running.engine_pids()[0], signal.SIGKILL)
        assert len((await collect(running, request())).tokens) == 20


async def test_park_and_unpark_by_hand(supervisor: Supervisor) -> None:
    first = await collect(supervisor, request(prompt_ids=LONG))
    await supervisor.park()
    await supervisor.park()
    assert is_parked(supervisor)
    await supervisor.unpark()
    await supervisor.unpark()
    assert not is_parked(supervisor)
    assert (await collect(supervisor, request(prompt_ids=LONG))).tokens == first.tokens


async def test_a_busy_engine_keeps_its_memory(supervisor: Supervisor) -> None:
    task, began = await first_token(supervisor, request(max_tokens=400))
    await began.wait()
    with pytest.raises(RequestRefusedError) as caught:
        await supervisor.park()
    assert caught.value.code == "busy"
    assert not is_parked(supervisor)
    assert len((await task).tokens) == 400


async def test_a_time_to_sleep_is_above_zero(brisk: SupervisorConfig) -> None:
    with pytest.raises(ConfigError, match="sleep_idle_s must be above 0"):
        dataclasses.replace(brisk, sleep_idle_s=0.0)


async def test_a_text_goes_to_a_file_and_into_another_engine(brisk: SupervisorConfig, tmp_path: Path) -> None:
    file = tmp_path / "a text.bin"
    async with Supervisor(brisk) as running:
        first = await collect(running, request(prompt_ids=LONG))
        saved = await running.save(LONG, file)
        assert (saved.n_tokens, saved.n_bytes) == (len(LONG), file.stat().st_size)
        assert running.status().engines[0].n_running == 0
    async with Supervisor(brisk) as another:
        assert await another.load(file) == len(LONG)
        again = await collect(another, request(prompt_ids=LONG))
        assert again.tokens == first.tokens
        assert again.end.n_reused == len(LONG), "all of the prompt came from the file"
        (figures,) = await another.engine_status()
        assert figures["pinned_bytes"] == "0", "it makes room like any other text"


async def test_a_text_that_nobody_has_read_is_read_for_its_file(supervisor: Supervisor, tmp_path: Path) -> None:
    await supervisor.park()
    assert (await supervisor.save(PROMPT, tmp_path / "text")).n_tokens == len(PROMPT)
    assert not is_parked(supervisor)


async def test_files_that_are_none_are_refused(supervisor: Supervisor, tmp_path: Path) -> None:
    (tmp_path / "damaged").write_bytes(b"LUCE" * 100)
    for name, code in (("missing", "no_such_file"), ("damaged", "bad_snapshot"), ("nul\0", "bad_args")):
        with pytest.raises(RequestRefusedError) as caught:
            await supervisor.load(tmp_path / name)
        assert caught.value.code == code
    with pytest.raises(RequestRefusedError) as caught:
        await supervisor.save(PROMPT, tmp_path / "nowhere" / "text")
    assert caught.value.code in {"no_such_file", "io_error"}
    assert (await supervisor.save(PROMPT, tmp_path / "text")).n_tokens == len(PROMPT), "the next one works"
