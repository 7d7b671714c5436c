"""Engines are killed, stopped and garbled under sixteen streams: no token is lost, repeated or changed, nothing leaks.

Short in normal runs; 200 events with --full.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle

from luce.supervisor import GenerateRequest, Supervisor
from tests.daemon.same_tokens import NOISE_CUTS, Comparison, SampledComparison
from tests.supervisor.streams import DEADLINE_S, Answer, FaultyEngine, Footprint, collect, request

N_STREAMS = 16
N_DRAWN = 100
"""Tokens of drawn texts that are compared: of 300, half the texts were seen to part by rounding."""
EVENTS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGRTMIN, signal.SIGRTMIN + 1)

DEADLY = (signal.SIGKILL, signal.SIGSTOP)
"""Nobody outlives them; the others may come too late for an engine that is on its way out."""


def greedy(number: int) -> GenerateRequest:
    return request(prompt_ids=tuple(300 + number * 17 + i for i in range(5 + number)), max_tokens=300, n_logprobs=2)


def sampled(number: int) -> GenerateRequest:
    return request(prompt_ids=(400 + number, 285, 1420), max_tokens=300, temperature=0.6, seed=number, n_logprobs=4)


class Disturbance:
    """Hits an engine that has requests, again and again, until it has done so often enough."""

    def __init__(self, supervisor: Supervisor, n_events: int) -> None:
        self._supervisor = supervisor
        self._n_events = n_events
        self._random = random.Random(1)
        self.n_done = 0
        self.dead: set[int] = set()

    @property
    def is_over(self) -> bool:
        return self.n_done >= self._n_events

    async def run(self) -> None:
        kinds = cycle(EVENTS)
        while not self.is_over:
            # Time is what is disturbed here: at no moment of an engine's life may it be hit unprepared.
            await asyncio.sleep(self._random.uniform(0.0, 0.6))
            status = self._supervisor.status().engines[0]
            if status.pid is not None and status.n_running > 0:
                kind = next(kinds)
                with suppress(ProcessLookupError):  # it is gone, and its end is on its way here
                    os.kill(status.pid, kind)
                self.n_done += 1
                if kind in DEADLY:
                    self.dead.add(status.pid)


async def stream(supervisor: Supervisor, asked: GenerateRequest, disturbance: Disturbance) -> list[Answer]:
    answers: list[Answer] = []
    while not disturbance.is_over or not answers:
        answers.append(await collect(supervisor, asked, deadline_s=600))
    return answers


def all_streams() -> Iterator[GenerateRequest]:
    for number in range(N_STREAMS // 2):
        yield greedy(number)
        yield sampled(number)


async def test_nothing_is_lost_repeated_or_changed(faulty: FaultyEngine, full: bool) -> None:
    config = faulty(changes={"lanes": N_STREAMS, "pool": 16384, "log_level": "error"})
    async with Supervisor(config):
        pass
    before = Footprint.now()
    comparison = Comparison(NOISE_CUTS)
    async with Supervisor(config) as supervisor:
        asked = list(all_streams())
        references = await asyncio.gather(*(collect(supervisor, one) for one in asked))
        disturbance = Disturbance(supervisor, 200 if full else 8)
        async with asyncio.TaskGroup() as group:
            group.create_task(disturbance.run())
            tasks = [group.create_task(stream(supervisor, one, disturbance)) for one in asked]
        async with asyncio.timeout(DEADLINE_S):
            while supervisor.status().engines[0].n_deaths < len(disturbance.dead):  # noqa: ASYNC110  not yet seen
                await asyncio.sleep(0.01)
        status = supervisor.status()
    sampled_ones = SampledComparison(NOISE_CUTS)
    for one, reference, task in zip(asked, references, tasks, strict=True):
        for answer in task.result():
            if one.temperature is None:
                comparison.check(f"{one.prompt_ids}", answer.tokens, reference.tokens, reference.margins)
            else:
                texts = (answer.tokens[:N_DRAWN], reference.tokens[:N_DRAWN])
                sampled_ones.check(f"seed {one.seed}", *texts, answer.logprobs, reference.logprobs)
            assert len(answer.tokens) == len(reference.tokens)
            assert [entries[0][0] for entries in answer.logprobs] == answer.tokens
            assert answer.end.reason == reference.end.reason
    comparison.finish()
    sampled_ones.finish()
    print(f"{disturbance.n_done} events, {status.engines[0].n_deaths} engines lost, {status.n_resumes} resumptions")
    assert status.n_failed == 0
    assert len(disturbance.dead) > 1
    del task, tasks
    assert Footprint.now() == before
