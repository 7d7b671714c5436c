"""What of a text matters, from the engine's client and from a Supervisor: found, cancelled, refused, and carried on by
the next engine."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from luce.protocol import Cancel, Compress, ErrorCode, Generate, LocalProtocolError, PinSpan, StopReason
from luce.supervisor import (
    Compressed,
    DaemonConfig,
    DeadlineError,
    EngineClient,
    EngineDied,
    EngineError,
    EngineFailedError,
    EngineProcess,
    PromptTooLongError,
    QueueFullError,
    RequestRefusedError,
    Supervisor,
    SupervisorClosedError,
    SupervisorConfig,
)
from luce.supervisor.engine.client import MAX_INLINE_IDS
from luce.supervisor.engine.generation import Compression, EngineEndedError
from luce.supervisor.text import TextModel
from tests.needles import CODE, QUESTION, SCORER, text_with_fact
from tests.supervisor.streams import DEADLINE_S, PROMPT, FaultyEngine, Footprint, collect, first_token, request
from tests.supervisor.test_client import N_LONG, n_prompt_files

ENDLESS = tuple(3 + i * 11 % 8000 for i in range(400_000))
"""A text of which no machine has read a half before what is tested beside it has happened."""


@pytest.fixture(scope="module")
def text(tiny_model: Path) -> TextModel:
    return TextModel(tiny_model)


@pytest.fixture(scope="module")
def asked(text: TextModel) -> tuple[int, ...]:
    """A text of about 1,750 tokens, and what it is read for."""
    ids = text.tokenize(f"{text_with_fact()}\n\n{QUESTION}")
    assert 1500 < len(ids) < 2100
    return tuple(ids)


@pytest.fixture
def config(tiny_model: Path) -> DaemonConfig:
    return DaemonConfig(
        model=tiny_model,
        ctx=16384,
        lanes=2,
        threads=1,
        no_warmup=True,
        log_level="warn",
        prefill_scorer=SCORER,
        prefill_repair="off",
    )


@pytest.fixture
def scoring(brisk: SupervisorConfig) -> SupervisorConfig:
    return dataclasses.replace(brisk, prefill_scorer=SCORER)


@pytest.fixture
async def supervisor(scoring: SupervisorConfig) -> AsyncIterator[Supervisor]:
    async with Supervisor(scoring) as running:
        yield running


def check(compressed: Compressed, prompt: tuple[int, ...]) -> None:
    """What every answer is."""
    assert compressed.n_in == len(prompt)
    assert compressed.tokens == tuple(token for begin, end in compressed.parts for token in prompt[begin:end])
    flat = [place for part in compressed.parts for place in part]
    assert flat == sorted(set(flat))
    assert flat[-1] == len(prompt)


async def n_scored(running: Supervisor) -> int:
    """Tokens that the small model has read, over all engines."""
    return sum(int(said["prefill_scored"]) for said in await running.engine_status(DEADLINE_S))


async def at_work(running: Supervisor) -> int:
    """The process that has begun to read a text, as its answer to a ping that came behind the text says."""
    (handle,) = (handle for handle in running._multiplexer.handles if handle.compressing.locked())
    assert handle._client is not None
    await handle._client.ping(DEADLINE_S)
    assert handle.monitor.pid is not None
    return handle.monitor.pid


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110  the state is the engine's
            await asyncio.sleep(0.01)


def asked_for(running: Supervisor, prompt: tuple[int, ...]) -> asyncio.Task[Compressed]:
    return asyncio.create_task(running.compress(prompt, 0.2))


# The engine's client


async def test_what_matters_is_found(client: EngineClient, asked: tuple[int, ...], text: TextModel) -> None:
    compressed = await client.compress(Compress(0.2, asked))
    check(compressed, asked)
    assert len(compressed.tokens) <= 0.2 * len(asked) + 1
    assert CODE in text.detokenize(compressed.tokens).decode()


async def test_what_is_named_is_kept_and_a_share_of_one_is_all(client: EngineClient, asked: tuple[int, ...]) -> None:
    compressed = await client.compress(Compress(0.05, asked, keep=(PinSpan(640, 700),), blocks=(PinSpan(64, 128),)))
    check(compressed, asked)
    assert any(begin <= 640 and end >= 700 for begin, end in compressed.parts)
    whole = await client.compress(Compress(1.0, asked))
    assert whole == Compressed(asked, ((0, len(asked)),), len(asked))


async def test_a_long_prompt_goes_by_a_file_that_goes_with_the_answer(client: EngineClient) -> None:
    prompt = ENDLESS[: MAX_INLINE_IDS + 1]
    waiting = asyncio.create_task(client.compress(Compress(0.2, prompt)))
    await asyncio.sleep(0)
    assert n_prompt_files() == 1
    check(await waiting, prompt)
    assert n_prompt_files() == 0


async def test_it_takes_no_lane(client: EngineClient, asked: tuple[int, ...]) -> None:
    commands = [Generate(prompt=PROMPT, n_generate=N_LONG, ignore_eos=True) for _ in range(2)]
    generations = [await client.generate(command) for command in commands]
    check(await client.compress(Compress(0.2, asked)), asked)
    assert not any(generation.done for generation in generations)


async def test_who_waits_no_more_ends_it(client: EngineClient, asked: tuple[int, ...]) -> None:
    waiting = asyncio.create_task(client.compress(Compress(0.2, ENDLESS)))
    await asyncio.sleep(0.3)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(DEADLINE_S):
        check(await client.compress(Compress(0.2, asked)), asked)
    await until(lambda: n_prompt_files() == 0)
    assert int(dict((await client.status(DEADLINE_S)).fields)["prefill_scored"]) < len(ENDLESS) / 2


async def test_a_cancelled_one_ends_as_a_generation_does(client: EngineClient) -> None:
    compression = Compression()
    request_id = client.start(Compress(0.2, ENDLESS), compression)
    await client.ping(DEADLINE_S)
    assert not compression.done
    await client.send(Cancel(id=request_id))
    await until(lambda: compression.done)
    assert isinstance(compression.result.exception(), EngineEndedError)
    assert compression._final is not None
    assert getattr(compression._final, "stop", None) is StopReason.CANCEL


async def test_its_engines_end_reaches_who_waits(client: EngineClient, process: EngineProcess) -> None:
    waiting = asyncio.create_task(client.compress(Compress(0.2, ENDLESS)))
    await asyncio.sleep(0.2)
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(EngineDied, match="SIGKILL"):
        async with asyncio.timeout(DEADLINE_S):
            await waiting
    assert n_prompt_files() == 0
    with pytest.raises(EngineDied):
        await client.compress(Compress(0.2, PROMPT))


async def test_what_is_refused(client: EngineClient) -> None:
    with pytest.raises(EngineError) as refused:
        await client.compress(Compress(0.2, (1, 10**6)))
    assert refused.value.code is ErrorCode.TOKEN_OUT_OF_RANGE
    for share in (0.0, 1.5, float("nan")):
        with pytest.raises(LocalProtocolError):
            await client.compress(Compress(share, PROMPT))
    check(await client.compress(Compress(0.2, PROMPT)), PROMPT)


async def test_without_a_scorer_the_engine_cannot(luced: Path, config: DaemonConfig) -> None:
    plain = dataclasses.replace(config, prefill_scorer=None, prefill_repair=None)
    async with await EngineProcess.spawn(luced, plain) as process:
        await process.wait_ready(timeout_s=DEADLINE_S)
        async with EngineClient(process) as client:
            with pytest.raises(EngineError, match="--prefill-scorer") as refused:
                await client.compress(Compress(0.2, PROMPT))
            assert refused.value.code is ErrorCode.UNSUPPORTED


# The supervisor


async def test_a_supervisor_finds_what_matters(supervisor: Supervisor, asked: tuple[int, ...], text: TextModel) -> None:
    compressed = await supervisor.compress(asked, 0.2)
    check(compressed, asked)
    assert CODE in text.detokenize(compressed.tokens).decode()
    kept = await supervisor.compress(asked, 0.05, keep=[(640, 700)], blocks=[(64, 128)])
    assert any(begin <= 640 and end >= 700 for begin, end in kept.parts)


async def test_many_at_once_beside_answers(supervisor: Supervisor, asked: tuple[int, ...]) -> None:
    prompts = [asked[n:] for n in range(0, 300, 100)]
    texts = asyncio.gather(*(supervisor.compress(prompt, 0.2) for prompt in prompts))
    answers = asyncio.gather(*(collect(supervisor, request(max_tokens=20)) for _ in range(6)))
    for prompt, compressed in zip(prompts, await texts, strict=True):
        check(compressed, prompt)
    assert [len(answer.tokens) for answer in await answers] == [20] * 6


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_an_engine_that_is_killed_meanwhile_is_replaced(supervisor: Supervisor, how: signal.Signals) -> None:
    prompt = ENDLESS[:1500]
    waiting = asked_for(supervisor, prompt)
    await asyncio.sleep(0)
    pid = await at_work(supervisor)
    os.kill(pid, how)
    async with asyncio.timeout(DEADLINE_S):
        check(await waiting, prompt)
    assert supervisor.engine_pids() != [pid]
    assert supervisor.status().engines[0].n_deaths == 1


async def test_of_two_engines_the_other_goes_on(scoring: SupervisorConfig) -> None:
    async with Supervisor(dataclasses.replace(scoring, engines=[{}, {}], restart_delay_s=30.0)) as running:
        prompt = ENDLESS[:1500]
        waiting = asked_for(running, prompt)
        await asyncio.sleep(0)
        os.kill(await at_work(running), signal.SIGKILL)
        async with asyncio.timeout(DEADLINE_S):
            check(await waiting, prompt)


async def test_a_text_that_kills_engines_is_given_up_and_the_next_is_served(
    faulty: FaultyEngine,
) -> None:
    config = faulty(changes={"prefill_scorer": SCORER}, POISON=7777)
    async with Supervisor(config) as running:
        with pytest.raises(EngineFailedError, match="is gone"):
            async with asyncio.timeout(DEADLINE_S):
                await running.compress((*PROMPT, 7777, 5), 0.5)
        await until(lambda: running.status().engines[0].n_deaths == 2)
        check(await running.compress(PROMPT, 0.5), PROMPT)


async def test_those_that_wait_are_not_to_blame(faulty: FaultyEngine) -> None:
    """Neither a text behind the one that kills, nor an answer beside it."""
    async with Supervisor(faulty(changes={"prefill_scorer": SCORER}, POISON=7777)) as running:
        answer, began = await first_token(running, request(max_tokens=400))
        await began.wait()
        bad = asyncio.create_task(running.compress((*PROMPT, 7777, 5), 0.5))
        good = [asyncio.create_task(running.compress(PROMPT, 0.5)) for _ in range(3)]
        with pytest.raises(EngineFailedError):
            await bad
        for waiting in good:
            check(await waiting, PROMPT)
        assert len((await answer).tokens) == 400


async def test_cancelling_gives_the_place_to_the_next(supervisor: Supervisor, asked: tuple[int, ...]) -> None:
    before = Footprint.now()
    waiting = [asked_for(supervisor, ENDLESS) for _ in range(3)]
    await asyncio.sleep(0.3)
    for task in waiting:
        task.cancel()
    ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError] * 3
    async with asyncio.timeout(DEADLINE_S):
        check(await supervisor.compress(asked, 0.2), asked)
    assert await n_scored(supervisor) < len(ENDLESS) / 2
    assert Footprint.now() == before


async def test_what_a_supervisor_refuses(supervisor: Supervisor, brisk: SupervisorConfig) -> None:
    async def code_of(tokens: tuple[int, ...], share: float, keep: tuple[tuple[int, int], ...] = ()) -> str:
        with pytest.raises(RequestRefusedError) as refused:
            await supervisor.compress(tokens, share, keep=keep)
        return refused.value.code

    assert await code_of((), 0.5) == "empty_prompt"
    assert await code_of((1, 10**6), 0.5) == "token_out_of_range"
    assert await code_of((1, -1), 0.5) == "bad_args"
    assert await code_of((1, 2**40) * 5000, 0.5) == "bad_args"
    assert await code_of(PROMPT, 0.0) == await code_of(PROMPT, 1.1) == "bad_args"
    assert await code_of(PROMPT, 0.5, ((3, 3),)) == "bad_args"
    with pytest.raises(PromptTooLongError):
        await supervisor.compress(ENDLESS * 11, 0.5)
    assert supervisor.status().engines[0].n_deaths == 0
    async with Supervisor(brisk) as plain:
        with pytest.raises(RequestRefusedError, match="prefill_scorer") as refused:
            await plain.compress(PROMPT, 0.5)
        assert refused.value.code == "unsupported"


async def test_so_many_may_wait_and_no_more(scoring: SupervisorConfig) -> None:
    async with Supervisor(dataclasses.replace(scoring, max_queue=1)) as running:
        waiting = [asked_for(running, ENDLESS) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError) as full:
            await running.compress(PROMPT, 0.5)
        assert full.value.retry_after_s > 0
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        check(await running.compress(PROMPT, 0.5), PROMPT)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"queue_timeout_s": 0.3, "restart_limit": 1000}, DeadlineError, r"0\.3 s"),
        ({"restart_limit": 3}, EngineFailedError, "given up"),
    ],
)
async def test_who_waits_for_an_engine_waits_for_a_time(
    faulty: FaultyEngine, tmp_path: Path, changes: dict[str, Any], error: type[Exception], text: str
) -> None:
    """And not where there will be none any more."""
    starts = tmp_path / "starts"
    starts.write_text("9")
    config = faulty(changes={"prefill_scorer": SCORER, "max_restart_delay_s": 0.1, **changes}, STARTS=starts, FAILS=9)
    async with Supervisor(config) as running:
        starts.write_text("-1000")
        os.kill(running.engine_pids()[0], signal.SIGKILL)
        with pytest.raises(error, match=text):
            async with asyncio.timeout(DEADLINE_S):
                await running.compress(ENDLESS, 0.5)


async def test_who_waits_for_others_waits_for_a_time(scoring: SupervisorConfig) -> None:
    async with Supervisor(dataclasses.replace(scoring, queue_timeout_s=0.3)) as running:
        first = asked_for(running, ENDLESS)
        await asyncio.sleep(0)
        with pytest.raises(DeadlineError, match=r"0\.3 s for its turn"):
            await running.compress(PROMPT, 0.5)
        assert not first.done()
        first.cancel()
        await asyncio.wait([first])
        check(await running.compress(PROMPT, 0.5), PROMPT)


async def test_leaving_the_supervisor_ends_it(scoring: SupervisorConfig) -> None:
    async with Supervisor(scoring) as running:
        waiting = [asked_for(running, ENDLESS) for _ in range(2)]
        await asyncio.sleep(0.2)
    ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(end) for end in ends] == [SupervisorClosedError] * 2
    with pytest.raises(SupervisorClosedError):
        await running.compress(PROMPT, 0.5)


async def test_a_parked_engine_wakes_for_it_and_does_not_sleep_meanwhile(scoring: SupervisorConfig) -> None:
    async with Supervisor(dataclasses.replace(scoring, sleep_idle_s=0.2)) as running:
        await until(lambda: running.status().engines[0].is_parked)
        waiting = asked_for(running, ENDLESS)
        await asyncio.sleep(1)
        assert not running.status().engines[0].is_parked
        waiting.cancel()
        await asyncio.wait([waiting])
        await until(lambda: running.status().engines[0].is_parked)


async def test_an_engine_that_hangs_meanwhile_is_replaced(scoring: SupervisorConfig) -> None:
    async with Supervisor(dataclasses.replace(scoring, idle_ping_interval_s=0.2)) as running:
        waiting = asked_for(running, ENDLESS[:1500])
        await asyncio.sleep(0)
        os.kill(await at_work(running), signal.SIGSTOP)
        async with asyncio.timeout(DEADLINE_S):
            check(await waiting, ENDLESS[:1500])
        assert running.status().engines[0].n_deaths == 1


async def test_an_answer_goes_on_beside_it(supervisor: Supervisor) -> None:
    waiting = asked_for(supervisor, ENDLESS)
    await asyncio.sleep(0)
    await at_work(supervisor)
    assert len((await collect(supervisor, request(max_tokens=8))).tokens) == 8
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])
