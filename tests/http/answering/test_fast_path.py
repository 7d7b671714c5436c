"""Fast paths: what goes to them and what does not, over a real engine: nothing is lost, repeated or out of order."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from luce.supervisor.http.answering.answer_events import AnswerEvent, ChoiceFinished, ContentPiece, FinishReason
from luce.supervisor.http.answering.answerer import ChatAnswerer, ChatAnswering
from luce.supervisor.http.answering.shutdown_gate import ShutdownGate
from luce.supervisor.http.prompts.answer_request import AnswerRequest
from tests.http.answering.answering_fixtures import (
    DEADLINE_S,
    Answering,
    Served,
    chat,
    check_pieces,
    running,
    serve,
    take,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASK = chat("Count to a hundred", max_tokens=200, ignore_eos=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tiny_model: Path) -> AsyncIterator[Answering]:
    async with running(tiny_model, draft_max=0) as answering:
        yield answering


class Listed:
    """A fast path that is clear as it is told, and its answer from both sides."""

    def __init__(self, clear: Iterable[bool]) -> None:
        self._clear = iter(clear)
        self.served = Served()
        self.n_shown = 0

    def is_clear(self) -> bool:
        return next(self._clear)

    def show(self, events: Sequence[AnswerEvent]) -> None:
        for event in events:
            take(self.served, event)
        self.n_shown += 1

    async def read(self, answering: ChatAnswering) -> Served:
        async for event in answering.events(self):
            take(self.served, event)
        assert self.served.finished is not None
        check_pieces(self.served)
        return self.served


async def serve_by(fast_path: Listed, answerer: ChatAnswerer, ask: AnswerRequest) -> Served:
    async with asyncio.timeout(DEADLINE_S), answerer.open(ask) as answering:
        return await fast_path.read(answering)


async def test_tokens_wake_nobody_while_the_outlet_is_clear(shared: Answering) -> None:
    fast_path = Listed(itertools.repeat(True))
    woken: list[AnswerEvent] = []
    async with asyncio.timeout(DEADLINE_S), shared.answerer.open(ASK) as answering:
        async for event in answering.events(fast_path):
            woken.append(event)
            take(fast_path.served, event)
    check_pieces(fast_path.served)
    assert fast_path.served.choice.content == (await serve(shared.answerer, ASK)).choice.content
    assert fast_path.served.usage.n_generated == 200
    # What comes together with the answer's end may be handed over with it.
    assert sum(isinstance(event, ContentPiece) for event in woken) <= 2
    assert fast_path.n_shown > 100


@pytest.mark.parametrize("pattern", ["no", "yes no", "no no no yes", "yes yes yes yes yes no"])
async def test_an_outlet_that_is_clear_at_times(shared: Answering, pattern: str) -> None:
    fast_path = Listed(itertools.cycle(word == "yes" for word in pattern.split()))
    served = await serve_by(fast_path, shared.answerer, ASK)
    assert served.choice.content == (await serve(shared.answerer, ASK)).choice.content
    assert (fast_path.n_shown > 0) == ("yes" in pattern)


async def test_a_stop_that_comes_by_the_outlet_ends_the_answer(shared: Answering) -> None:
    whole = (await serve(shared.answerer, ASK)).choice.content
    stop = whole[len(whole) // 4 : len(whole) // 4 + 8]
    served = await serve_by(Listed(itertools.repeat(True)), shared.answerer, replace(ASK, stops=(stop,)))
    assert served.choice.reason is FinishReason.STOP_TEXT
    assert served.choice.content == whole[: whole.index(stop)]
    assert served.usage.n_generated < 200


class Failing(Listed):
    def show(self, events: Sequence[AnswerEvent]) -> None:
        super().show(events)
        if self.n_shown == 5:
            raise ZeroDivisionError


async def test_an_outlet_that_fails_is_its_readers_affair(shared: Answering) -> None:
    beside = asyncio.create_task(serve(shared.answerer, ASK))
    with pytest.raises(ZeroDivisionError):
        await serve_by(Failing(itertools.repeat(True)), shared.answerer, ASK)
    assert (await beside).usage.n_generated == 200
    assert shared.supervisor.status().engines[0].n_deaths == 0


class Waited(Listed):
    """Tells when it has got something."""

    def __init__(self) -> None:
        super().__init__(itertools.repeat(True))
        self.got = asyncio.Event()

    def show(self, events: Sequence[AnswerEvent]) -> None:
        super().show(events)
        self.got.set()


async def test_a_reader_that_is_cancelled_gets_nothing_more(shared: Answering) -> None:
    fast_path = Waited()
    reading = asyncio.create_task(serve_by(fast_path, shared.answerer, replace(ASK, max_tokens=1500)))
    async with asyncio.timeout(DEADLINE_S):
        await fast_path.got.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    n_shown = fast_path.n_shown
    assert (await serve(shared.answerer, ASK)).usage.n_generated == 200
    assert fast_path.n_shown == n_shown


async def test_a_gate_that_is_shut_ends_what_goes_by_an_outlet(shared: Answering) -> None:
    gate, fast_path = ShutdownGate(), Waited()

    async def read() -> None:
        async with gate.before(shared.answerer).open(replace(ASK, max_tokens=1500)) as answering:
            async for _ in answering.events(fast_path):
                pass

    reading = asyncio.create_task(read())
    async with asyncio.timeout(DEADLINE_S):
        await fast_path.got.wait()
        gate.interrupt()
        with pytest.raises(Exception, match="shutting down"):
            await reading
    assert not any(isinstance(event, ChoiceFinished) for event in fast_path.served.events)


async def test_an_engine_that_dies_is_a_pause_for_an_outlet_too(tiny_model: Path) -> None:
    async with running(tiny_model, draft_max=0) as answering:

        class Killing(Listed):
            def show(self, events: Sequence[AnswerEvent]) -> None:
                super().show(events)
                if self.n_shown == 20:
                    os.kill(answering.supervisor.engine_pids()[0], signal.SIGKILL)

        served = await serve_by(Killing(itertools.repeat(True)), answering.answerer, ASK)
        assert served.usage.n_generated == 200
        assert served.usage.n_resumes >= 1
