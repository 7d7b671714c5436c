"""Supervisor with engines that are killed, hang, talk nonsense, do not start, or are merely slow."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from luce.protocol import ConstraintArgs
from luce.supervisor import (
    EngineFailedError,
    EngineKillerError,
    EngineState,
    GenerateRequest,
    RequestRefusedError,
    StartError,
    Supervisor,
    SupervisorConfig,
    TokenEvent,
)
from tests.supervisor.streams import (
    DEADLINE_S,
    N_LONG,
    Answer,
    FaultyEngine,
    Footprint,
    check_same,
    collect,
    first_token,
    request,
    until,
)

POISON = 7777


async def collect_under(supervisor: Supervisor, asked: Any, at: dict[int, int]) -> Answer:
    """The answer, with a signal to the engine whenever so many tokens have come."""
    answer = Answer()
    async with asyncio.timeout(DEADLINE_S), aclosing(supervisor.generate(asked)) as events:
        async for event in events:
            answer.take(event)
            if isinstance(event, TokenEvent) and event.index in at:
                for pid in supervisor.engine_pids():
                    os.kill(pid, at.pop(event.index))
                    break
    return answer


async def collect_all_under(supervisor: Supervisor, asked: list[GenerateRequest], at: dict[int, int]) -> list[Answer]:
    """All at once; the first one's tokens are counted."""
    others = [asyncio.create_task(collect(supervisor, one)) for one in asked[1:]]
    first = await collect_under(supervisor, asked[0], at)
    return [first, *await asyncio.gather(*others)]


async def collect_all(supervisor: Supervisor, asked: list[GenerateRequest]) -> list[Answer]:
    return await asyncio.gather(*(collect(supervisor, one) for one in asked))


GRAMMAR = ConstraintArgs(grammar='root ::= ([a-z]+ " "){100,200}')
N_DRAWN = 6
"""Texts, where tokens are drawn: one or two part by rounding, which tells nothing; by an error, all of them do.
Without drafts: rejected ones leave cells to other lanes, so that a text's rows lie, and are added up, in another order
from run to run, and many draws would fall at an edge. The greedy tests run with drafts."""


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({}, marks=pytest.mark.full_only),  # as with logprobs
        pytest.param({"temperature": 1.2}, marks=pytest.mark.full_only),  # as with penalties
        {"temperature": 0.9, "repeat_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
        {"temperature": 1.0, "constraint": GRAMMAR},
        {"n_logprobs": 4},
    ],
    ids=["greedy", "sampled", "penalties", "grammar", "logprobs"],
)
async def test_a_killed_engine_is_a_pause(brisk: SupervisorConfig, values: dict[str, Any]) -> None:
    draft_max = 0 if "temperature" in values else None
    async with Supervisor(dataclasses.replace(brisk, lanes=N_DRAWN, pool=16384, draft_max=draft_max)) as supervisor:
        if "temperature" in values:
            asked = [request(max_tokens=120, n_logprobs=4, seed=seed, **values) for seed in range(N_DRAWN)]
        else:
            asked = [request(max_tokens=N_LONG, **values)]
        expected = await collect_all(supervisor, [dataclasses.replace(one, n_logprobs=4) for one in asked])
        kills: dict[int, int] = {20: signal.SIGKILL, 90: signal.SIGKILL, 91: signal.SIGKILL}
        answers = await collect_all_under(supervisor, asked, kills)
        check_same(asked, answers, expected, 100)
        assert answers[0].end.n_resumes >= 1
        assert 1 <= supervisor.status().engines[0].n_deaths <= 3


async def test_the_seed_that_was_picked_outlives_the_engine(brisk: SupervisorConfig) -> None:
    async with Supervisor(dataclasses.replace(brisk, lanes=N_DRAWN, pool=16384, draft_max=0)) as supervisor:
        asked = [request(max_tokens=120, temperature=1.5, n_logprobs=4) for _ in range(N_DRAWN)]
        answers = await collect_all_under(supervisor, asked, {30: signal.SIGKILL})
        seeds = [answer.end.seed for answer in answers]
        assert len(set(seeds)) == N_DRAWN
        asked = [dataclasses.replace(one, seed=seed) for one, seed in zip(asked, seeds, strict=True)]
        check_same(asked, answers, await collect_all(supervisor, asked), 100)


async def test_an_end_token_is_an_end_also_after_a_crash(faulty: FaultyEngine, tmp_path: Path) -> None:
    """The reply that says how a text has ended is lost: it is asked for again, and nothing comes after the end."""
    async with Supervisor(faulty()) as supervisor:
        asked = request(prompt="Who are you?", max_tokens=500, ignore_eos=False, temperature=0.7, seed=1)
        expected = await collect(supervisor, asked)
        assert expected.end.reason == "eos"
    lost = faulty(LOST="ok id=", MARK=tmp_path / "lost", changes={"final_timeout_s": 2.0})
    async with Supervisor(lost) as supervisor:
        answer = await collect(supervisor, asked)
        assert (answer.tokens, answer.end.reason, answer.end.n_resumes) == (expected.tokens, "eos", 1)


@pytest.mark.parametrize(
    "number",
    [signal.SIGSTOP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGRTMIN, signal.SIGRTMIN + 1, signal.SIGRTMIN + 2],
    ids=["stopped", "garbage", "stdout closed", "stdin closed", "tokens closed", "tokens garbage"],
)
async def test_an_engine_that_cannot_go_on_is_a_pause(faulty: FaultyEngine, number: int) -> None:
    async with Supervisor(dataclasses.replace(faulty(), draft_max=0)) as supervisor:
        # More than there are lanes.
        asked = [request(max_tokens=120, temperature=0.6, seed=seed, n_logprobs=4) for seed in range(N_DRAWN)]
        expected = await collect_all(supervisor, asked)
        first = supervisor.engine_pids()
        check_same(asked, await collect_all_under(supervisor, asked, {30: number}), expected, 100)
        if number != signal.SIGRTMIN:  # a pipe that nobody reads breaks only when it is written to
            assert supervisor.engine_pids() != first
            assert supervisor.status().n_resumes >= 1


async def test_an_idle_engine_that_dies_is_replaced(brisk: SupervisorConfig) -> None:
    async with Supervisor(brisk) as supervisor:
        (pid,) = supervisor.engine_pids()
        os.kill(pid, signal.SIGKILL)
        assert len((await collect(supervisor, request())).tokens) == 20
        assert supervisor.engine_pids() != [pid]


async def test_a_request_that_crashes_engines_is_found_and_its_neighbours_live(faulty: FaultyEngine) -> None:
    async with Supervisor(faulty(POISON=POISON, changes={"draft_max": 0})) as supervisor:
        good = [request(max_tokens=100, temperature=1.0, seed=seed, n_logprobs=4) for seed in range(N_DRAWN)]
        tasks = [asyncio.create_task(collect(supervisor, one)) for one in good]
        with pytest.raises(EngineKillerError):
            await collect(supervisor, request(prompt_ids=(329, POISON, 285)))
        answers = await asyncio.gather(*tasks)
        check_same(good, answers, [await collect(supervisor, one) for one in good], 100)
        assert supervisor.status().engines[0].n_deaths <= 6
        for _ in range(4):  # whoever tries it again and again does not wear the engine out
            with pytest.raises(EngineKillerError):
                await collect(supervisor, request(prompt_ids=(329, POISON, 285)))
        assert len((await collect(supervisor, request())).tokens) == 20


async def test_two_poisonous_requests_are_told_apart(faulty: FaultyEngine) -> None:
    async with Supervisor(faulty(POISON=POISON)) as supervisor:
        bad = [asyncio.create_task(collect(supervisor, request(prompt_ids=(329 + i, POISON)))) for i in range(2)]
        good = [
            asyncio.create_task(collect(supervisor, request(max_tokens=50, prompt_ids=(329 + i,)))) for i in range(4)
        ]
        results = await asyncio.gather(*bad, return_exceptions=True)
        assert [type(result) for result in results] == [EngineKillerError] * 2
        assert [len(answer.tokens) for answer in await asyncio.gather(*good)] == [50] * 4


async def test_a_request_without_room_does_not_empty_the_engine(faulty: FaultyEngine) -> None:
    """`busy`, `queue_full` and `no_room` say that there is no room beside others: who is refused waits, alone."""
    config = faulty(BUSY=POISON, REFUSALS=1, changes={"lanes": 3})
    async with Supervisor(config) as supervisor:
        running, began = await first_token(supervisor, request(max_tokens=1900))
        await began.wait()
        refused = asyncio.create_task(collect(supervisor, request(prompt_ids=(329, POISON, 285))))
        for number in range(3):
            assert len((await collect(supervisor, request(prompt_ids=(330 + number, 285)))).tokens) == 20
        assert not running.done(), "the engine was emptied first"
        assert len((await refused).tokens) == 20
        running.cancel()


async def test_a_start_that_fails_is_the_callers_to_know(brisk: SupervisorConfig, tmp_path: Path) -> None:
    before = Footprint.now()
    model = tmp_path / "bad.gguf"
    model.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(StartError):
        async with Supervisor(dataclasses.replace(brisk, model=model)):
            pass
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec cat\n")
    silent.chmod(0o755)
    with pytest.raises(StartError, match="within"):
        async with Supervisor(dataclasses.replace(brisk, binary=silent, start_timeout_s=0.1)):
            pass
    assert Footprint.now() == before


async def test_a_process_that_is_stopped_before_it_is_ready_is_not_waited_for(
    brisk: SupervisorConfig, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nkill -STOP $$\n")
    program.chmod(0o755)
    with pytest.raises(StartError, match="stopped by a signal"):
        async with Supervisor(dataclasses.replace(brisk, binary=program)):
            pass


async def test_an_exchanged_model_does_not_go_on_with_anothers_text(
    brisk: SupervisorConfig, data_models: Path, tmp_path: Path
) -> None:
    model, other = tmp_path / "model.gguf", tmp_path / "other.gguf"
    model.write_bytes(brisk.model.read_bytes())
    other.write_bytes((data_models / "luce-tiny-scorer-Q8_0.gguf").read_bytes())
    async with Supervisor(dataclasses.replace(brisk, model=model)) as supervisor:
        running, began = await first_token(supervisor, request(max_tokens=1900))
        await began.wait()
        other.replace(model)
        os.kill(supervisor.engine_pids()[0], signal.SIGKILL)
        with pytest.raises(RequestRefusedError, match="exchanged"):
            await running


async def test_a_restart_that_fails_is_tried_again(faulty: FaultyEngine, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    starts.write_text("0")
    async with Supervisor(faulty()) as supervisor:
        asked = request(max_tokens=N_LONG, n_logprobs=4)
        expected = await collect(supervisor, asked)
    config = faulty(STARTS=starts, FAILS=5)
    starts.write_text("5")  # the first start works …
    async with Supervisor(config) as supervisor:
        starts.write_text("2")  # … and after it three do not
        answer = await collect_under(supervisor, asked, {20: signal.SIGKILL})
        check_same([asked], [answer], [expected], 100)
        assert starts.read_text() == "6"
        assert supervisor.status().engines[0].n_deaths == 4


async def test_an_engine_that_never_comes_back_is_given_up(faulty: FaultyEngine, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    starts.write_text("1000")
    async with Supervisor(faulty(STARTS=starts, FAILS=1000, changes={"restart_limit": 3})) as supervisor:
        starts.write_text("0")
        running, began = await first_token(supervisor, request(max_tokens=1500))
        await began.wait()
        (pid,) = supervisor.engine_pids()
        os.kill(pid, signal.SIGKILL)
        queued = asyncio.create_task(collect(supervisor, request()))
        for task in (running, queued):
            with pytest.raises(EngineFailedError, match="not this time"):
                await task
        with pytest.raises(EngineFailedError):
            await collect(supervisor, request())
        assert supervisor.status().engines[0].state is EngineState.FAILED
        assert not supervisor.status().is_healthy


async def test_an_engine_that_was_given_up_is_tried_again_for_a_later_request(
    faulty: FaultyEngine, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    starts.write_text("1000")
    changes = {"restart_limit": 3, "max_restart_delay_s": 0.1}
    async with Supervisor(faulty(STARTS=starts, FAILS=1000, changes=changes)) as supervisor:
        starts.write_text("0")
        (pid,) = supervisor.engine_pids()
        os.kill(pid, signal.SIGKILL)
        await until(lambda: supervisor.status().engines[0].state is EngineState.FAILED, "it is given up")
        n_deaths = supervisor.status().engines[0].n_deaths
        answer: Answer | None = None
        async with asyncio.timeout(DEADLINE_S):
            while answer is None:
                with suppress(EngineFailedError):
                    answer = await collect(supervisor, request())
                if supervisor.status().engines[0].n_deaths > n_deaths:
                    starts.write_text("1000")
                await asyncio.sleep(0)
        assert len(answer.tokens) == 20


async def test_a_slow_engine_is_not_a_dead_one(faulty: FaultyEngine) -> None:
    """Its steps get slower and slower, beyond the limit that held at first, but never four times at once. A crowded
    machine may add one and a half seconds to each."""
    changes = {"asleep_timeout_s": 3.0, "busy_timeout_s": 3.0}
    async with Supervisor(faulty(DELAYS="0,1.5,4", changes=changes)) as supervisor, asyncio.timeout(DEADLINE_S):
        while supervisor.status().engines[0].slowest_step_s < 3.2:
            await collect(supervisor, request(max_tokens=500))
        assert supervisor.status().engines[0].n_deaths == 0
        assert supervisor.status().n_resumes == 0


async def test_a_stopped_engine_that_goes_on_in_time_is_kept(brisk: SupervisorConfig) -> None:
    async with Supervisor(dataclasses.replace(brisk, stopped_timeout_s=30.0, asleep_timeout_s=30.0)) as supervisor:
        running, began = await first_token(supervisor, request(max_tokens=300))
        await began.wait()
        (pid,) = supervisor.engine_pids()
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(0.5)  # some ticks of the watchdog
        os.kill(pid, signal.SIGCONT)
        assert len((await running).tokens) == 300
        assert supervisor.engine_pids() == [pid]


async def test_a_cancelled_request_is_not_carried_on(brisk: SupervisorConfig) -> None:
    async with Supervisor(brisk) as supervisor:
        running, began = await first_token(supervisor, request(max_tokens=2000))
        await began.wait()
        (pid,) = supervisor.engine_pids()
        os.kill(pid, signal.SIGSTOP)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert len((await collect(supervisor, request())).tokens) == 20
        assert supervisor.engine_pids() != [pid]
        assert supervisor.status().n_resumes == 1  # of the second one, which the stopped engine had been given


async def test_several_engines_share_and_stand_in_for_each_other(brisk: SupervisorConfig) -> None:
    engines = [{"env": {"LUCE_TEST": str(number)}, "lanes": 2} for number in range(2)]
    async with Supervisor(dataclasses.replace(brisk, engines=engines)) as supervisor:
        first, second = supervisor.engine_pids()
        assert [psutil.Process(pid).environ()["LUCE_TEST"] for pid in (first, second)] == ["0", "1"]
        asked = [request(prompt_ids=(300 + i, 285, 1420), max_tokens=300, n_logprobs=4) for i in range(4)]
        expected = await collect_all(supervisor, asked)
        tasks = [await first_token(supervisor, one) for one in asked]
        for _, began in tasks:
            await began.wait()
        assert [engine.n_running for engine in supervisor.status().engines] == [2, 2]
        os.kill(first, signal.SIGSTOP)
        answers = await asyncio.gather(*(task for task, _ in tasks))
        check_same(asked, answers, expected, 100)
        assert second in supervisor.engine_pids()


async def test_a_conversation_stays_with_the_engine_that_has_read_it(brisk: SupervisorConfig) -> None:
    engines = [{"lanes": 4}, {"lanes": 4}]
    async with Supervisor(dataclasses.replace(brisk, engines=engines, ctx=8192, pool=32768)) as supervisor:
        blockers = []
        for start in (300, 600, 900):
            task, began = await first_token(supervisor, request(prompt_ids=range(start, start + 100), max_tokens=8000))
            await began.wait()
            blockers.append(task)
        assert [engine.n_running for engine in supervisor.status().engines] == [2, 1]
        task, began = await first_token(supervisor, request(prompt_ids=range(300, 420), max_tokens=8000))
        await began.wait()
        assert [engine.n_running for engine in supervisor.status().engines] == [3, 1]
        for one in (*blockers, task):
            one.cancel()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_we_end_nothing_is_left(luced: Path, tiny_model: Path, own_temporary_dir: Path, number: int) -> None:
    assert luced.is_file()
    code = f"""
import asyncio
from pathlib import Path
import luce.supervisor.engine.client as client
from luce.supervisor import GenerateRequest, Supervisor, SupervisorConfig, TokenEvent
client.MAX_INLINE_IDS = 2
async def main():
    config = SupervisorConfig(model=Path({str(tiny_model)!r}), threads=1, no_warmup=True, ctx=2048)
    async with Supervisor(config) as supervisor:
        request = GenerateRequest(prompt_ids=[329, 285, 1420], max_tokens=2000, ignore_eos=True)
        async for event in supervisor.generate(request):
            if isinstance(event, TokenEvent) and event.index == 10:
                print(*supervisor.engine_pids(), flush=True)
asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as running:
        assert running.stdout is not None
        engine = psutil.Process(int(running.stdout.readline()))
        running.send_signal(number)
        running.wait(timeout=DEADLINE_S)
        psutil.wait_procs([engine], timeout=DEADLINE_S)
        assert not engine.is_running()
    assert list(own_temporary_dir.iterdir()) == []
