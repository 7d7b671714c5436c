"""Supervisor with an embedding model and a reranker: engines that die, requests that take turns, what is refused."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor import (
    ConfigError,
    DeadlineError,
    EngineFailedError,
    EngineKillerError,
    EngineState,
    PromptTooLongError,
    QueueFullError,
    RequestRefusedError,
    StartError,
    Supervisor,
    SupervisorClosedError,
    SupervisorConfig,
)
from luce.supervisor.embedding.vector_queue import MAX_IN_ENGINE, VectorQueue

DEADLINE_S = 120.0
ROUNDING = 1e-4

Make = Callable[..., Any]


@pytest.fixture
def embedding(brisk: SupervisorConfig, test_models: Path) -> Make:
    """async with embedding(changes…): a supervisor with an embedding model, an encoder, and what is changed."""
    config = dataclasses.replace(brisk, embedding_model=test_models / "embeddings" / "bert.gguf")

    @asynccontextmanager
    async def make(**changes: Any) -> AsyncIterator[Supervisor]:
        async with asyncio.timeout(DEADLINE_S), Supervisor(dataclasses.replace(config, **changes)) as supervisor:
            yield supervisor

    return make


def queue_of(supervisor: Supervisor) -> VectorQueue:
    return supervisor.embedding_model().queue


def pid_of(supervisor: Supervisor) -> int:
    pid = supervisor.embedding_model().monitor.pid
    assert pid is not None
    return pid


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  engines tell their supervisor, and nobody else
        await asyncio.sleep(0.005)


def long_job(n: int = 1000) -> list[list[int]]:
    return [[5 + (number * step) % 120 for step in range(300)] for number in range(n)]


async def kill_at_work(supervisor: Supervisor, at_least: int) -> None:
    """Once so many texts are done, while others are with the engine."""
    queue = queue_of(supervisor)
    await until(lambda: queue.totals.n_texts >= at_least and bool(queue._running))
    os.kill(pid_of(supervisor), signal.SIGKILL)


async def test_vectors_and_scores(embedding: Make, test_models: Path) -> None:
    async with embedding(rerank_model=test_models / "embeddings" / "bert-rank.gguf") as supervisor:
        first, second = await supervisor.embed(["the city of paris", [9, 10, 11]])
        assert (len(first.values), second.n_tokens) == (64, 3)
        assert sum(value * value for value in first.values) == pytest.approx(1, abs=1e-5)
        scores = await supervisor.rerank("which city", ["paris", "the river"])
        assert [score.n_tokens for score in scores] == [6, 7]
        assert scores[0].logit != scores[1].logit
        assert all(0 < score.probability < 1 for score in scores)
        names = [(status.name, status.state, status.n_texts) for status in supervisor.status().embeddings]
        assert names == [("embedding", EngineState.READY, 2), ("rerank", EngineState.READY, 2)]


async def test_a_request_survives_the_death_of_its_engine(embedding: Make) -> None:
    job = long_job(400)
    async with embedding() as supervisor:
        expected = await supervisor.embed(job[:20])
        running = asyncio.create_task(supervisor.embed(job))
        await kill_at_work(supervisor, 100)
        found = await running
        (status,) = supervisor.status().embeddings
        assert (status.n_deaths, status.n_retries) == (1, 1)
        assert len(found) == len(job)
        for one, other in zip(expected, found, strict=False):
            assert max(abs(a - b) for a, b in zip(one.values, other.values, strict=True)) < ROUNDING


async def test_an_engine_that_has_died_unseen(embedding: Make) -> None:
    async with embedding() as supervisor:
        for n in range(1, 4):
            os.kill(pid_of(supervisor), signal.SIGKILL)
            assert len(await supervisor.embed(long_job(40))) == 40
            assert supervisor.status().embeddings[0].n_deaths == n


async def test_a_request_that_kills_two_engines_is_given_up(embedding: Make) -> None:
    async with embedding() as supervisor:
        running = asyncio.create_task(supervisor.embed(long_job()))
        await kill_at_work(supervisor, 100)
        await until(lambda: supervisor.status().embeddings[0].n_deaths == 1)
        n_before = queue_of(supervisor).totals.n_texts
        await kill_at_work(supervisor, n_before + 50)
        with pytest.raises(EngineKillerError, match="2 engines"):
            await running
        assert len(await supervisor.embed([[5, 6]])) == 1
        assert supervisor.status().embeddings[0].n_deaths == 2


async def test_one_requests_deaths_are_not_the_others(embedding: Make) -> None:
    """Both were with the first engine; the second one has them one after the other."""
    async with embedding() as supervisor:
        jobs = [asyncio.create_task(supervisor.embed(long_job(250))) for _ in range(2)]
        await kill_at_work(supervisor, 50)
        await until(lambda: supervisor.status().embeddings[0].n_deaths == 1)
        queue = queue_of(supervisor)
        n_before = queue.totals.n_texts
        await until(lambda: queue.totals.n_texts > n_before)
        assert len(queue._running) == 1
        os.kill(pid_of(supervisor), signal.SIGKILL)
        ends = await asyncio.gather(*jobs, return_exceptions=True)
        assert sum(isinstance(end, EngineKillerError) for end in ends) == 1
        assert sum(isinstance(end, list) and len(end) == 250 for end in ends) == 1


async def test_an_engine_that_always_dies_is_given_up(embedding: Make) -> None:
    async with embedding(restart_limit=2) as supervisor:
        model = supervisor.embedding_model()
        for _ in range(3):
            await until(lambda: model.monitor.state in {EngineState.READY, EngineState.FAILED})
            if model.monitor.state is EngineState.READY:
                n_deaths = model.monitor.n_deaths
                os.kill(pid_of(supervisor), signal.SIGKILL)
                await until(lambda before=n_deaths: model.monitor.n_deaths > before)  # type: ignore[misc]
        await until(lambda: model.monitor.state is EngineState.FAILED)
        with pytest.raises(EngineFailedError):
            await supervisor.embed(["text"])
        assert supervisor.status().is_healthy  # answers are given all the same


async def test_an_engine_that_was_given_up_is_tried_again_for_a_later_request(embedding: Make) -> None:
    async with embedding(restart_limit=1, max_restart_delay_s=0.05) as supervisor:
        model = supervisor.embedding_model()
        os.kill(pid_of(supervisor), signal.SIGKILL)
        await until(lambda: model.monitor.state is EngineState.FAILED)
        vectors = None
        async with asyncio.timeout(DEADLINE_S):
            while vectors is None:
                with suppress(EngineFailedError):
                    vectors = await supervisor.embed(["text"])
                await asyncio.sleep(0)
        assert len(vectors) == 1


async def test_a_short_request_does_not_wait_for_a_long_one(embedding: Make) -> None:
    async with embedding() as supervisor:
        library = asyncio.create_task(supervisor.embed(long_job(2000)))
        await until(lambda: queue_of(supervisor).totals.n_texts > 0)
        await supervisor.embed([[5, 6, 7]])
        assert not library.done()
        library.cancel()
        with pytest.raises(asyncio.CancelledError):
            await library
        queue = queue_of(supervisor)
        assert not queue._running
        assert not queue._requests
        assert len(await supervisor.embed([[5, 6, 7]])) == 1


async def test_a_queue_that_is_full_and_one_that_takes_too_long(embedding: Make) -> None:
    async with embedding(max_queue=1, queue_timeout_s=0.3, stopped_timeout_s=1000.0) as supervisor:
        os.kill(pid_of(supervisor), signal.SIGSTOP)
        first = asyncio.create_task(supervisor.embed([[5]] * MAX_IN_ENGINE))
        await until(lambda: bool(queue_of(supervisor)._running))
        second = asyncio.create_task(supervisor.embed([[6]]))
        await until(lambda: queue_of(supervisor).n_waiting == 1)
        with pytest.raises(QueueFullError):
            await supervisor.embed([[7]])
        with pytest.raises(DeadlineError):
            await second
        os.kill(pid_of(supervisor), signal.SIGCONT)
        assert len(await first) == MAX_IN_ENGINE


async def test_leaving_the_supervisor_ends_what_waits(embedding: Make) -> None:
    async with embedding() as supervisor:
        running = asyncio.create_task(supervisor.embed(long_job()))
        await until(lambda: bool(queue_of(supervisor)._running))
    with pytest.raises(SupervisorClosedError):
        await running
    with pytest.raises(SupervisorClosedError):
        await supervisor.embedding_model().queue.embed([[5]])


async def test_what_is_refused(embedding: Make) -> None:
    async with embedding(embedding_ctx=100) as supervisor:
        with pytest.raises(PromptTooLongError) as raised:
            await supervisor.embed([[5] * 101])
        assert (raised.value.n_prompt, raised.value.n_ctx) == (101, 100)
        for ids, code in (([], "empty_prompt"), ([999999], "token_out_of_range"), ([-1], "bad_args")):
            with pytest.raises(RequestRefusedError) as refused:
                await supervisor.embed([[5], ids])
            assert refused.value.code == code
        with pytest.raises(RequestRefusedError, match="rerank_model"):
            await supervisor.rerank("query", ["document"])
        assert supervisor.status().embeddings[0].n_deaths == 0
        assert len(await supervisor.embed([[5] * 100])) == 1


@pytest.mark.parametrize(
    ("field", "name", "says"),
    [
        ("embedding_model", "qwen3", "embedding_model: .*pooling"),
        ("embedding_model", "embeddings/bert-rank", "--rerank-model"),
        ("rerank_model", "embeddings/bert", "rerank_model: .*no reranker"),
        ("embedding_model", "missing", "missing.gguf"),
        ("model", "embeddings/bert", "--embedding-model"),
    ],
)
async def test_a_model_of_another_kind_is_refused(
    brisk: SupervisorConfig, test_models: Path, field: str, name: str, says: str
) -> None:
    changes: dict[str, Any] = {field: test_models / f"{name}.gguf"}
    config = dataclasses.replace(brisk, **changes)
    with pytest.raises(StartError, match=says):
        async with Supervisor(config):
            pass


@pytest.mark.parametrize("changes", [{"embedding_pooling": "cls"}, {"embedding_ctx": 100}, {"embedding_gpu_layers": 0}])
def test_options_without_a_model_are_refused(brisk: SupervisorConfig, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        dataclasses.replace(brisk, **changes)


def test_what_is_said_of_the_answering_model_is_not_the_others(brisk: SupervisorConfig, tmp_path: Path) -> None:
    config = dataclasses.replace(
        brisk,
        draft=tmp_path / "draft.gguf",
        kvflash="auto",
        pool=None,
        disk_cache=tmp_path,
        embedding_model=tmp_path / "e.gguf",
        rerank_model=tmp_path / "r.gguf",
        embedding_ctx=300,
        embedding_pooling="last",
    )
    embedding, rerank = config.embedding_config(), config.rerank_config()
    assert embedding is not None
    assert rerank is not None
    common = ["--ctx", "300", "--threads", "1", "--embedding"]
    for one, model, pooling in ((embedding, "e", "last"), (rerank, "r", "rank")):
        (engine,) = one.engine_configs()
        argv = one.daemon_config(engine).to_argv()
        assert argv == ["--model", str(tmp_path / f"{model}.gguf"), *common, pooling, "--log-level", "warn"]
