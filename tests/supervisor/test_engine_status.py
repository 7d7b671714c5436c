"""What a supervisor says of its engines: the lanes at work, and each engine's own figures."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import resource
import signal
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest

from luce.supervisor import EngineState, RequestRefusedError, Supervisor, SupervisorConfig
from tests.supervisor.streams import DEADLINE_S, PROMPT, FaultyEngine, collect, first_token, request


@pytest.fixture
async def supervisor(brisk: SupervisorConfig) -> AsyncIterator[Supervisor]:
    async with Supervisor(dataclasses.replace(brisk, stopped_timeout_s=600.0, asleep_timeout_s=600.0)) as running:
        yield running


async def test_an_engine_says_how_it_stands(supervisor: Supervisor) -> None:
    answer = await collect(supervisor, request())
    (figures,) = await supervisor.engine_status()
    assert (figures["lanes"], figures["pool"], figures["lanes_busy"]) == ("4", "8192", "0")
    assert int(figures["tokens_in"]) == answer.end.n_prompt
    info = supervisor.status().engines[0].info
    assert info is not None
    assert (info.pool, info.lanes) == (8192, 4)


async def test_a_text_may_be_longer_than_a_bounded_pool(brisk: SupervisorConfig) -> None:
    changes: dict[str, Any] = {"pool": None, "kvflash": 640, "lanes": 1, "ubatch": 64, "host_cache": 256 << 20}
    async with Supervisor(dataclasses.replace(brisk, **changes)) as running:
        info = running.status().engines[0].info
        assert info is not None
        assert (info.kvflash, info.pool, info.ctx) == (640, 640, 2048)
        assert 0 < info.slot_bytes < info.host_bytes
        prompt = tuple(2 + i * 7 % 8000 for i in range(1500))
        answer = await collect(running, request(prompt_ids=prompt, boundaries=(700, 1400)))
        assert (answer.end.n_prompt, len(answer.tokens)) == (1500, 20)
        (figures,) = await running.engine_status()
        assert int(figures["pages_moved_out"]) >= (1500 - 640) // 64
        assert (figures["pages_out"], figures["pool"]) == ("0", "640")


async def test_an_engine_that_dies_for_want_of_memory_starts_again_with_a_smaller_pool(faulty: FaultyEngine) -> None:
    bounded: dict[str, Any] = {"pool": None, "kvflash": 1024, "lanes": 1, "ubatch": 64, "host_cache": 256 << 20}
    said: list[str] = []
    prompt = tuple(2 + i * 7 % 8000 for i in range(1500))
    async with Supervisor(faulty(changes=bounded), on_log=said.append) as running:
        for deaths, pool in enumerate((768, 576, 512, 512), start=1):
            task, began = await first_token(running, request(prompt_ids=prompt, max_tokens=30))
            await began.wait()
            (pid,) = running.engine_pids()
            os.kill(pid, signal.SIGRTMIN + 3)
            answer = await task
            assert len(answer.tokens) == 30
            status = running.status().engines[0]
            assert status.n_deaths == deaths
            assert status.info is not None
            assert (status.info.kvflash, status.info.kvflash_least) == (pool, 512)
    told = [line for line in said if "ran out of memory" in line]
    assert len(told) == 3
    assert "CUDA error: out of memory" in told[0]
    assert "with a pool of 768 tokens, not 1024" in told[0]
    assert len([line for line in said if line.startswith("engine 0: luced (pid ") and "is gone" in line]) == 4


async def test_requests_outlive_memory_that_is_refused(brisk: SupervisorConfig) -> None:
    """The engine helps itself, or dies of it: ggml ends it where some of its own requests for memory are refused."""
    bounded: dict[str, Any] = {"pool": None, "kvflash": 8192, "ctx": 8192, "lanes": 2, "host_cache": 256 << 20}
    log: list[str] = []
    async with Supervisor(dataclasses.replace(brisk, **bounded), on_log=log.append) as running:
        task, began = await first_token(running, request(max_tokens=400))
        await began.wait()
        (pid,) = running.engine_pids()
        n_bytes = psutil.Process(pid).memory_info().vms
        resource.prlimit(pid, resource.RLIMIT_AS, (n_bytes + (1 << 20), resource.RLIM_INFINITY))
        prompt = tuple(2 + i * 7 % 8000 for i in range(2000))
        long = await collect(running, request(prompt_ids=prompt, max_tokens=16))
        assert (len(long.tokens), len((await task).tokens)) == (16, 400)
        (figures,) = await running.engine_status()
        # What was refused first hangs on what the allocator still had: a graph is done without, cells are given up.
        assert int(figures["pool"]) < 8192 or any("no memory" in line for line in log), log


@pytest.mark.parametrize(("death", "pool"), [(signal.SIGRTMIN + 4, 768), (signal.SIGRTMIN + 5, 576)])
async def test_an_engine_starts_again_with_the_pool_that_the_one_before_had_in_the_end(
    faulty: FaultyEngine, death: int, pool: int
) -> None:
    bounded: dict[str, Any] = {"pool": None, "kvflash": 1024, "lanes": 1, "ubatch": 64, "host_cache": 256 << 20}
    async with Supervisor(faulty(changes=bounded)) as running:
        for n, signal_number in enumerate((death, signal.SIGKILL), start=1):
            task, began = await first_token(running, request(max_tokens=200))
            await began.wait()
            (pid,) = running.engine_pids()
            os.kill(pid, signal_number)
            assert len((await task).tokens) == 200
            status = running.status().engines[0]
            assert status.n_deaths == n
            assert status.info is not None
            assert status.info.kvflash == pool


async def test_an_engine_that_dies_of_something_else_keeps_its_pool(faulty: FaultyEngine) -> None:
    bounded: dict[str, Any] = {"pool": None, "kvflash": 1024, "lanes": 1, "ubatch": 64, "host_cache": 256 << 20}
    async with Supervisor(faulty(changes=bounded)) as running:
        task, began = await first_token(running, request(max_tokens=200))
        await began.wait()
        (pid,) = running.engine_pids()
        os.kill(pid, signal.SIGKILL)
        assert len((await task).tokens) == 200
        info = running.status().engines[0].info
        assert info is not None
        assert info.kvflash == 1024


async def test_pins_of_a_request_reach_the_engine(brisk: SupervisorConfig) -> None:
    changes: dict[str, Any] = {"pool": None, "kvflash": 640, "lanes": 1, "ubatch": 64, "host_cache": 256 << 20}
    prompt = tuple(2 + i * 7 % 8000 for i in range(1500))
    async with Supervisor(dataclasses.replace(brisk, kvflash_pin=("0:100",), **changes)) as running:
        answer = await collect(running, request(prompt_ids=prompt, pin=((256, 300),)))
        assert (answer.end.n_prompt, len(answer.tokens)) == (1500, 20)
        for pin, said in (((0, 1000),), "has room for 320 tokens"), (((1400, 1501),), "not within the prompt"):
            with pytest.raises(RequestRefusedError, match=said) as refused:
                await collect(running, request(prompt_ids=prompt, pin=pin))
            assert refused.value.code == "bad_args"
    for wrong in ((5, 5), (9, 3), (-1, 5)):
        with pytest.raises(ValueError, match="before it ends"):
            request(pin=(wrong,))


async def test_without_a_bounded_pool_nothing_is_said_of_what_is_out(supervisor: Supervisor) -> None:
    info = supervisor.status().engines[0].info
    assert info is not None
    assert info.kvflash is None
    assert info.slot_bytes == info.host_bytes // 2
    (figures,) = await supervisor.engine_status()
    assert not {"pages_out", "page_stall_s"} & set(figures)


async def test_lanes_at_work_are_told(supervisor: Supervisor) -> None:
    task, began = await first_token(supervisor, request(max_tokens=2000))
    await began.wait()
    (engine,) = supervisor.status().engines
    (lane,) = engine.running
    assert (lane.n_prompt, lane.n_read) == (len(PROMPT), len(PROMPT))
    assert lane.n_generated >= 1
    task.cancel()
    await collect(supervisor, request())
    async with asyncio.timeout(DEADLINE_S):
        while supervisor.status().engines[0].running != ():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_an_engine_that_does_not_answer_has_no_figures(supervisor: Supervisor) -> None:
    (pid,) = supervisor.engine_pids()
    os.kill(pid, signal.SIGSTOP)
    assert await supervisor.engine_status(timeout_s=0.1) == [{}]
    os.kill(pid, signal.SIGKILL)
    assert await supervisor.engine_status(timeout_s=DEADLINE_S) == [{}]  # it dies, and its figures with it
    await collect(supervisor, request())
    assert supervisor.status().engines[0].state is EngineState.READY
    (figures,) = await supervisor.engine_status()
    assert figures["lanes"] == "4"
