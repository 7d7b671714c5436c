"""Plays the prompts of a replay to an engine and measures what a client would: the time to the first token above all.

Knows `luce.supervisor`; knows no transcripts.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from luce.supervisor import FinishedEvent, GenerateRequest, RequestError, Supervisor, SupervisorConfig, TokenEvent
from scripts.bench.replay.prompts import Prepared, Prompt

MAX_THINK_S = 60.0
"""Longest pause before a request: what a person does over lunch is no measure of an engine."""
WARM_UP_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Served:
    """What came of one request."""

    ttft_s: float  # as its client sees it: with the wait for its turn
    total_s: float
    n_prompt: int
    n_reused: int
    tier: str
    miss: str
    tokens: tuple[int, ...]
    margins: tuple[float, ...] = ()
    """The best logit's lead at each token, where logprobs were asked for."""
    n_resumes: int = 0
    """Engines that were lost under it."""
    failure: str = ""

    @property
    def ok(self) -> bool:
        return not self.failure


Pass = dict[tuple[str, int], Served]
"""What came of all requests, by session and turn."""


class Target(Protocol):
    """Whom the requests are sent to."""

    async def ask(self, prompt: Prompt, max_tokens: int) -> Served:
        """The request's failure is a Served too."""


@dataclass(frozen=True)
class SupervisorTarget:
    supervisor: Supervisor
    timeout_s: float
    with_margins: bool = False

    async def ask(self, prompt: Prompt, max_tokens: int) -> Served:
        request = GenerateRequest(
            prompt_ids=prompt.ids,
            max_tokens=max_tokens,
            temperature=0.0,
            ignore_eos=True,  # the answer is as long as the recorded one
            n_logprobs=2 if self.with_margins else 0,
            boundaries=prompt.boundaries,
            client=prompt.session,
            timeout_s=self.timeout_s,
        )
        tokens: list[int] = []
        margins: list[float] = []
        finished: FinishedEvent | None = None
        started_s = time.perf_counter()
        first_s: float | None = None
        failure = ""
        try:
            async with aclosing(self.supervisor.generate(request)) as events:
                async for event in events:
                    if isinstance(event, TokenEvent):
                        first_s = time.perf_counter() if first_s is None else first_s
                        tokens.append(event.token)
                        if event.logprobs is not None:
                            margins.append(event.logprobs[1][1] - event.logprobs[2][1])
                    elif isinstance(event, FinishedEvent):
                        finished = event
        except RequestError as error:
            failure = f"{error.code}: {error}"
        total_s = time.perf_counter() - started_s
        ttft_s = total_s if first_s is None else first_s - started_s
        served = Served(ttft_s, total_s, len(prompt.ids), 0, "none", "none", tuple(tokens), tuple(margins))
        if finished is None:
            return replace(served, failure=failure or "internal: it ended without its last event")
        return replace(
            served, n_reused=finished.n_reused, tier=finished.tier, miss=finished.miss, n_resumes=finished.n_resumes
        )


def cold_config(config: SupervisorConfig) -> SupervisorConfig:
    """The same engine, without anything that it could go on from and without waiting for what others read."""
    return replace(config, prefix_cache="off", slots=0, host_cache=0, disk_cache=None, share_min_tokens=2**31)


@asynccontextmanager
async def fresh_target(
    config: SupervisorConfig, *, timeout_s: float, with_margins: bool = False
) -> AsyncIterator[SupervisorTarget]:
    """An engine of its own, which knows no text yet, but has been asked once: a first call pays for what later ones
    do not (the files of the weights, kernels, graphs). Raises StartError or RequestError."""
    async with Supervisor(config) as supervisor:
        target = SupervisorTarget(supervisor, timeout_s, with_margins)
        rng = random.Random(1)
        n_vocab = (await supervisor.text()).n_vocab
        request = GenerateRequest(
            prompt_ids=[rng.randrange(n_vocab) for _ in range(64)],
            max_tokens=8,
            ignore_eos=True,
            timeout_s=WARM_UP_TIMEOUT_S,
        )
        async with aclosing(supervisor.generate(request)) as events:
            async for _ in events:
                pass
        yield target


async def play(
    target: Target, sessions: Sequence[Prepared], *, max_tokens: int, concurrency: int = 1, think: float = 0.0
) -> Pass:
    """All requests: those of a session one after the other, so many sessions at once."""
    served: Pass = {}
    waiting = iter(sessions)

    async def work() -> None:
        for prepared in waiting:
            for prompt in prepared.prompts:
                if think > 0 and prompt.think_s is not None:
                    await asyncio.sleep(min(prompt.think_s * think, MAX_THINK_S))
                n_tokens = min(prompt.n_answer, max_tokens)
                served[prompt.session, prompt.number] = await target.ask(prompt, n_tokens)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(sessions))):
            group.create_task(work())
    return served
