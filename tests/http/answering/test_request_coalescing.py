"""The same request sent again while the first one runs: over a real engine, with one lane."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.http.answering import request_coalescing as retries
from luce.supervisor.http.answering.answer_events import Progress
from luce.supervisor.http.answering.answer_request import AnswerRequest
from luce.supervisor.http.errors import ApiError, ErrorKind
from tests.http.answering.answering_fixtures import (
    DEADLINE_S,
    Answering,
    Served,
    chat,
    read,
    running,
    serve,
    system,
    take,
)

RULES = " ".join(f"Rule {n}: be kind to file number {n * 37 % 101}." for n in range(240))
PATIENT: dict[str, Any] = {"stopped_timeout_s": 600.0, "asleep_timeout_s": 600.0, "stalled_timeout_s": 600.0}


@pytest.fixture(autouse=True)
def no_least_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry comes at once here."""
    monkeypatch.setattr(retries, "_LEAST_AGE_S", 0.0)


def long_ask(**options: object) -> AnswerRequest:
    return chat(system(RULES), "Hello", **{"max_tokens": 8, "fingerprint": "one", **options})


async def begun(answering: Answering, ask: AnswerRequest, stack: AsyncExitStack) -> asyncio.Task[Served]:
    """An answer whose prompt is being read."""
    opened = await stack.enter_async_context(answering.answerer.open(ask))
    is_reading = asyncio.Event()

    async def follow() -> Served:
        served = Served()
        async for event in opened.events():
            take(served, event)
            if isinstance(event, Progress):
                is_reading.set()
        return served

    task = asyncio.create_task(follow())
    await is_reading.wait()
    os.kill(answering.supervisor.engine_pids()[0], signal.SIGSTOP)  # it reads no further before others have come
    return task


def go_on(answering: Answering) -> None:
    os.kill(answering.supervisor.engine_pids()[0], signal.SIGCONT)


@pytest.mark.parametrize("max_queue", [4, 0])
async def test_a_retry_takes_the_place_of_the_first(tiny_model: Path, max_queue: int) -> None:
    async with (
        running(tiny_model, ctx=8192, lanes=1, ubatch=64, max_queue=max_queue, **PATIENT) as slow,
        asyncio.timeout(DEADLINE_S),
        AsyncExitStack() as stack,
    ):
        first = await begun(slow, long_ask(), stack)
        n_read = slow.supervisor.status().engines[0].running[0].n_read
        assert n_read > 0
        async with slow.answerer.open(long_ask()) as answering:
            go_on(slow)
            served = await read(answering)
        # The prompt was read once: by the first one's request, which the second one has taken over.
        assert served.usage.n_cached == 0
        assert not first.done() or max_queue == 0
        if max_queue == 0:
            with pytest.raises(ApiError) as raised:
                await first
            assert raised.value.kind is ErrorKind.SUPERSEDED
        else:
            late = await first
            assert late.usage.n_cached >= served.usage.n_prompt - 1
            assert late.choice.content == served.choice.content


async def test_other_requests_are_no_retries(tiny_model: Path) -> None:
    async with (
        running(tiny_model, ctx=8192, lanes=1, ubatch=64, max_queue=0, **PATIENT) as slow,
        asyncio.timeout(DEADLINE_S),
        AsyncExitStack() as stack,
    ):
        first = await begun(slow, long_ask(), stack)
        for other in (
            long_ask(fingerprint="two"),
            long_ask(client="b"),
            long_ask(session="c"),
            long_ask(fingerprint=""),
        ):
            with pytest.raises(ApiError) as raised:
                async with slow.answerer.open(other):
                    pytest.fail("there was no room")
            assert raised.value.kind is ErrorKind.OVERLOADED
        go_on(slow)
        assert (await first).finished is not None


async def test_twins_are_all_served(tiny_model: Path) -> None:
    """A load test sends the same request many times."""
    async with running(tiny_model, lanes=2) as answering, asyncio.timeout(DEADLINE_S):
        ask = chat("Hello", max_tokens=16, ignore_eos=True, fingerprint="one")
        served = await asyncio.gather(*(serve(answering.answerer, ask) for _ in range(64)))
        assert len({one.choice.content for one in served}) == 1
        assert answering.supervisor.status().n_cancelled == 0
        assert answering.supervisor.status().n_finished == 64
