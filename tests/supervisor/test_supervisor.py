"""Supervisor with a real engine that is well: what callers get, in which order, and what they are refused."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from luce.protocol import ConstraintArgs, StopReason
from luce.supervisor import (
    ConfigError,
    DeadlineError,
    EngineConfig,
    EngineState,
    FinishedEvent,
    GenerateRequest,
    PromptTooLongError,
    QueueFullError,
    RequestRefusedError,
    Supervisor,
    SupervisorClosedError,
    SupervisorConfig,
    TokenEvent,
)
from tests.daemon.other_tokenizer import write_with_other_tokenizer
from tests.supervisor.streams import (
    DEADLINE_S,
    PROMPT,
    Answer,
    Footprint,
    check_same,
    collect,
    first_token,
    request,
)

ROOMY: dict[str, Any] = {"ctx": 16384, "pool": 65536}
"""For answers that are not done, however fast the machine, before what is tested beside them has happened."""


@pytest.fixture
def settings(tiny_model: Path) -> SupervisorConfig:
    return SupervisorConfig(model=tiny_model, ctx=2048, pool=8192, lanes=4, threads=1, no_warmup=True, log_level="warn")


@pytest.fixture
async def supervisor(settings: SupervisorConfig) -> AsyncIterator[Supervisor]:
    async with Supervisor(settings) as running:
        yield running


async def test_tokens_come_first_and_the_counts_last(supervisor: Supervisor) -> None:
    answer = await collect(supervisor, request())
    end = answer.end
    assert (end.n_prompt, end.n_generated, end.reason, end.n_resumes) == (len(PROMPT), 20, StopReason.LIMIT, 0)
    assert end.n_reused == 0
    assert end.prefill_s > 0
    assert end.decode_tokens_per_s > 0


async def test_the_text_side_can_be_asked_for_before_an_engine_is_there(settings: SupervisorConfig) -> None:
    supervisor = Supervisor(settings)
    early = await supervisor.text()
    n_tokens = len(early.tokenize("Who are you?", add_special=True, parse_special=True))
    async with supervisor:
        assert await supervisor.text() is early
        answer = await collect(supervisor, request(prompt="Who are you?"))
    assert answer.end.n_prompt == n_tokens


async def test_a_text_is_tokenised(supervisor: Supervisor) -> None:
    text = await supervisor.text()
    ids = text.tokenize("Who are you?", add_special=True, parse_special=True)
    by_text = await collect(supervisor, request(prompt="Who are you?"))
    by_ids = await collect(supervisor, request(prompt_ids=ids))
    assert by_text.tokens == by_ids.tokens
    assert by_text.end.n_prompt == len(ids)


async def test_logprobs_come_with_their_tokens(supervisor: Supervisor) -> None:
    answer = await collect(supervisor, request(n_logprobs=2))
    assert [entries[0][0] for entries in answer.logprobs] == answer.tokens
    assert all(len(entries) == 3 for entries in answer.logprobs)


async def test_a_seed_is_picked_told_and_enough(supervisor: Supervisor) -> None:
    first = await collect(supervisor, request(temperature=1.5))
    again = await collect(supervisor, request(temperature=1.5, seed=first.end.seed))
    other = await collect(supervisor, request(temperature=1.5))
    assert first.tokens == again.tokens
    assert first.end.seed != other.end.seed


async def test_a_seed_of_the_configuration_is_that_of_requests_without_one(settings: SupervisorConfig) -> None:
    async with Supervisor(dataclasses.replace(settings, seed=0)) as supervisor:
        answers = [await collect(supervisor, request(temperature=1.5, seed=seed)) for seed in (None, None, 0, 1)]
    assert [answer.end.seed for answer in answers] == [0, 0, 0, 1]
    assert answers[0].tokens == answers[1].tokens == answers[2].tokens != answers[3].tokens


async def test_zero_tokens_are_an_answer(supervisor: Supervisor) -> None:
    assert (await collect(supervisor, request(max_tokens=0))).tokens == []


async def test_many_clients_at_once(supervisor: Supervisor) -> None:
    asked = [request(temperature=1.0, seed=seed, client=f"client {seed % 3}", n_logprobs=4) for seed in range(20)]
    alone = [await collect(supervisor, one) for one in asked[:5]]
    together = await asyncio.gather(*(collect(supervisor, one) for one in asked))
    check_same(asked[:5], together[:5], alone, 20)
    status = supervisor.status()
    assert (status.n_requests, status.n_finished, status.n_failed, status.n_waiting) == (25, 25, 0, 0)
    assert status.n_tokens == 25 * 20


async def test_leaving_early_frees_the_lane(supervisor: Supervisor) -> None:
    for _ in range(8):  # twice the lanes
        async with asyncio.timeout(DEADLINE_S), aclosing(supervisor.generate(request(max_tokens=2000))) as events:
            await anext(events)
    assert len((await collect(supervisor, request())).tokens) == 20
    assert supervisor.status().n_cancelled == 8


async def test_a_dropped_iterator_is_a_cancelled_request(supervisor: Supervisor) -> None:
    async with asyncio.timeout(DEADLINE_S):
        async for _ in supervisor.generate(request(max_tokens=2000)):
            break
        while supervisor.status().n_cancelled == 0:  # noqa: ASYNC110  the loop's own clean-up tells nobody
            await asyncio.sleep(0)


async def test_cancelled_in_the_queue_while_reading_and_while_writing(settings: SupervisorConfig) -> None:
    long_prompt = tuple(2 + i % 8000 for i in range(8000))
    async with Supervisor(dataclasses.replace(settings, **ROOMY)) as supervisor:
        blockers = [await first_token(supervisor, request(max_tokens=8000)) for _ in range(3)]
        for _, began in blockers:
            await began.wait()
        reading = asyncio.create_task(collect(supervisor, request(prompt_ids=long_prompt)))
        queued = asyncio.create_task(collect(supervisor, request()))
        async with asyncio.timeout(DEADLINE_S):
            while supervisor.status().engines[0].n_running < 4:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert supervisor.status().n_waiting == 1
        for task in (queued, reading, *(task for task, _ in blockers)):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert supervisor.status().n_waiting == 0
        assert len((await collect(supervisor, request())).tokens) == 20
        async with asyncio.timeout(DEADLINE_S):
            while supervisor.status().engines[0].n_running > 0:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_slow_reader_stalls_nobody_and_loses_nothing(supervisor: Supervisor) -> None:
    asked = request(max_tokens=500, n_logprobs=4)
    slow = Answer()
    async with aclosing(supervisor.generate(asked)) as events:
        slow.take(await anext(events))
        assert len(slow.tokens) == 1
        for _ in range(3):
            assert len((await collect(supervisor, request(max_tokens=200))).tokens) == 200
        async with asyncio.timeout(DEADLINE_S):
            async for event in events:
                slow.take(event)
    check_same([asked], [slow], [await collect(supervisor, asked)], 500)


async def test_the_queue_is_bounded_and_says_when_to_come_back(settings: SupervisorConfig) -> None:
    async with Supervisor(dataclasses.replace(settings, max_queue=2, **(ROOMY | {"lanes": 1}))) as supervisor:
        running, began = await first_token(supervisor, request(max_tokens=8000))
        await began.wait()
        waiting = [asyncio.create_task(collect(supervisor, request())) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError) as refused:
            await collect(supervisor, request())
        assert refused.value.retry_after_s >= 1
        running.cancel()
        assert [len(answer.tokens) for answer in await asyncio.gather(*waiting)] == [20, 20]


async def test_free_lanes_need_no_queue(settings: SupervisorConfig) -> None:
    async with Supervisor(dataclasses.replace(settings, max_queue=0)) as supervisor:
        answers = await asyncio.gather(*(collect(supervisor, request()) for _ in range(4)))
        assert [len(answer.tokens) for answer in answers] == [20] * 4


async def test_waiting_and_running_have_deadlines(settings: SupervisorConfig) -> None:
    async with Supervisor(dataclasses.replace(settings, **(ROOMY | {"lanes": 1}))) as supervisor:
        running, began = await first_token(supervisor, request(max_tokens=8000))
        await began.wait()
        with pytest.raises(DeadlineError, match="waited"):
            await collect(supervisor, request(queue_timeout_s=0.05))
        running.cancel()
        with pytest.raises(DeadlineError, match="at most"):
            await collect(supervisor, request(max_tokens=16000, timeout_s=0.3))
        assert len((await collect(supervisor, request())).tokens) == 20


async def test_higher_priorities_overtake(settings: SupervisorConfig) -> None:
    async with Supervisor(dataclasses.replace(settings, **(ROOMY | {"lanes": 1}))) as supervisor:
        running, began = await first_token(supervisor, request(max_tokens=8000))
        await began.wait()
        order: list[str] = []

        async def note(name: str, priority: int) -> None:
            await collect(supervisor, request(priority=priority))
            order.append(name)

        notes = asyncio.gather(note("low", -1), note("normal", 0), note("high", 3))
        async with asyncio.timeout(DEADLINE_S):
            while supervisor.status().n_waiting < 3:  # noqa: ASYNC110
                await asyncio.sleep(0)
        running.cancel()
        await notes
        assert order == ["high", "normal", "low"]


@pytest.mark.parametrize(
    ("values", "error", "code"),
    [
        ({"prompt_ids": ()}, RequestRefusedError, "empty_prompt"),
        ({"prompt_ids": (5,) * 3000}, PromptTooLongError, "prompt_too_long"),
        ({"prompt_ids": (10**6,)}, RequestRefusedError, "token_out_of_range"),
        ({"prompt_ids": (2**40,)}, RequestRefusedError, "bad_args"),
        ({"prompt_ids": ("a",)}, RequestRefusedError, "bad_args"),
        ({"top_p": 7.0}, RequestRefusedError, "bad_args"),
        ({"constraint": ConstraintArgs(grammar="root ::= (")}, RequestRefusedError, "bad_grammar"),
    ],
)  # fmt: skip
async def test_what_cannot_be_is_refused_with_a_code(
    supervisor: Supervisor, values: dict[str, object], error: type[RequestRefusedError], code: str
) -> None:
    with pytest.raises(error) as refused:
        await collect(supervisor, request(**values))
    assert refused.value.code == code
    assert len((await collect(supervisor, request())).tokens) == 20


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"prompt": "a", "prompt_ids": (1,)},
        {"prompt": "a", "max_tokens": -1},
        {"prompt": "a", "n_logprobs": 101},
        {"prompt": "a", "seed": -1},
    ],
)
def test_a_request_is_checked_where_it_is_made(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"a request has|must be"):
        GenerateRequest(**values)  # type: ignore[arg-type]


def test_a_configuration_is_checked_where_it_is_made(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match="no option lane"):
        EngineConfig(lane=3)
    with pytest.raises(ConfigError, match="no option mux"):
        EngineConfig.of({"mux": True})
    config = SupervisorConfig(model=tiny_model, lanes=2, engines=[{"env": {"A": "b"}, "lanes": 3}])
    (engine,) = config.engine_configs()
    assert engine.environment == {"A": "b"}
    assert (config.daemon_config(engine).lanes, config.daemon_config(engine).model) == (3, tiny_model)


async def test_leaving_the_supervisor_ends_all_and_leaves_nothing(settings: SupervisorConfig) -> None:
    async with Supervisor(settings):
        pass
    before = Footprint.now()
    supervisor = Supervisor(settings)
    tasks: list[asyncio.Task[Answer]] = []

    async def fail_in_the_middle() -> None:
        async with supervisor:
            running, began = await first_token(supervisor, request(max_tokens=2000))
            queued = [asyncio.create_task(collect(supervisor, request(max_tokens=2000))) for _ in range(10)]
            tasks.extend((running, *queued))
            await began.wait()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_in_the_middle()
    for task in tasks:
        with pytest.raises(SupervisorClosedError):
            await task
    with pytest.raises(SupervisorClosedError):
        await collect(supervisor, request())
    assert supervisor.engine_pids() == []
    assert supervisor.status().engines[0].state is EngineState.STOPPING
    assert Footprint.now() == before


async def test_a_supervisor_is_entered_once(supervisor: Supervisor) -> None:
    with pytest.raises(RuntimeError, match="once"):
        await supervisor.__aenter__()


async def test_status_says_what_there_is(supervisor: Supervisor) -> None:
    (engine,) = supervisor.status().engines
    assert supervisor.status().is_healthy
    assert (engine.state, engine.lanes, engine.n_deaths, engine.n_running) == (EngineState.READY, 4, 0, 0)
    assert [engine.pid] == supervisor.engine_pids()


async def test_events_carry_what_embedders_read(supervisor: Supervisor) -> None:
    events = [event async for event in supervisor.generate(request(max_tokens=3))]
    assert all(isinstance(event.token, int) for event in events if isinstance(event, TokenEvent))
    assert isinstance(events[-1], FinishedEvent)
    assert SimpleNamespace(**dataclasses.asdict(events[-1])).tier == "none"


async def test_engines_of_another_model_are_refused(settings: SupervisorConfig, tmp_path: Path) -> None:
    """Their prompts would be another tokenizer's ids. A copy is the same model."""
    other, copy = tmp_path / "other.gguf", tmp_path / "copy.gguf"
    write_with_other_tokenizer(settings.model, other)
    copy.write_bytes(settings.model.read_bytes())
    with pytest.raises(ConfigError, match=r"other\.gguf is another model than .* \(another vocabulary\)"):
        async with Supervisor(dataclasses.replace(settings, engines=[{}, {"model": other}])):
            pass
    async with Supervisor(dataclasses.replace(settings, engines=[{"model": copy}, {}])) as running:
        assert running.model == copy
        assert (await collect(running, request())).tokens
