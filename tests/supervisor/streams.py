"""What the supervisor's tests share: requests, their answers, and what must not be left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from luce.supervisor import (
    FinishedEvent,
    GenerateRequest,
    PrefillEvent,
    RequestEvent,
    Supervisor,
    SupervisorConfig,
    TokenEvent,
)
from tests.daemon.same_tokens import NOISE_CUTS, Comparison, SampledComparison

FaultyEngine = Callable[..., SupervisorConfig]
PROMPT = (329, 285, 1420, 261, 1319)
DEADLINE_S = 120.0
N_LONG = 800
"""Tokens of an answer that is to be disturbed: it must not be done before its first tokens have been seen here."""


@dataclass
class Answer:
    """What one request has brought."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    progress: list[PrefillEvent] = field(default_factory=list)
    finished: FinishedEvent | None = None

    def take(self, event: RequestEvent) -> None:
        """Tokens have to come in order, and the last event last."""
        assert self.finished is None, "an event after the last one"
        if isinstance(event, TokenEvent):
            assert event.index == len(self.tokens), "a token was lost or repeated"
            self.tokens.append(event.token)
            if event.logprobs is not None:
                self.logprobs.append(event.logprobs)
        elif isinstance(event, PrefillEvent):
            self.progress.append(event)
        else:
            assert isinstance(event, FinishedEvent)
            self.finished = event

    @property
    def end(self) -> FinishedEvent:
        assert self.finished is not None
        return self.finished

    @property
    def margins(self) -> list[float]:
        """The best logit's lead at each step, of a request with n_logprobs=2: chosen, best, second."""
        return [entries[1][1] - entries[2][1] for entries in self.logprobs]


def request(**values: Any) -> GenerateRequest:
    """Twenty tokens from PROMPT, unless `values` say otherwise."""
    defaults = {"max_tokens": 20, "ignore_eos": True}
    if "prompt" not in values:
        defaults["prompt_ids"] = PROMPT  # type: ignore[assignment]
    return GenerateRequest(**{**defaults, **values})


async def until(holds: Callable[[], bool], what: str) -> None:
    """Fails when it never does."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not holds():  # noqa: ASYNC110  the state is the engine's
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"never: {what}")


async def collect(supervisor: Supervisor, asked: GenerateRequest, *, deadline_s: float = DEADLINE_S) -> Answer:
    """The whole answer."""
    answer = Answer()
    async with asyncio.timeout(deadline_s), aclosing(supervisor.generate(asked)) as events:
        async for event in events:
            answer.take(event)
    assert answer.end.n_generated == len(answer.tokens)
    return answer


def check_same(
    asked: Sequence[GenerateRequest], answers: Sequence[Answer], expected: Sequence[Answer], n_compared: int
) -> None:
    """The same texts, but for where rounding turns a near-tie or a draw at an edge: what one run has decoded token by
    token, another reads in one piece, or beside others. Of drawn texts, which have no margins to go by, the first
    `n_compared` tokens: so few that hardly any of them parts by chance, and all do that are drawn otherwise.

    REQUIRES: they are all greedy, or all drawn; the expected ones, and drawn ones, have n_logprobs=4."""
    greedy, drawn = Comparison(NOISE_CUTS), SampledComparison(NOISE_CUTS)
    for number, (one, got, wanted) in enumerate(zip(asked, answers, expected, strict=True)):
        name = f"answer {number} (seed {wanted.end.seed})"
        assert len(got.tokens) == len(wanted.tokens), name
        assert got.end.reason == wanted.end.reason, name
        if one.n_logprobs:
            assert [entries[0][0] for entries in got.logprobs] == got.tokens, name
        if one.temperature is None:
            greedy.check(name, got.tokens, wanted.tokens, wanted.margins)
        else:
            texts = (got.tokens[:n_compared], wanted.tokens[:n_compared])
            drawn.check(name, *texts, got.logprobs, wanted.logprobs)
    greedy.finish(share_allowed=1)
    drawn.finish()


async def first_token(supervisor: Supervisor, asked: GenerateRequest) -> tuple[asyncio.Task[Answer], asyncio.Event]:
    """The answer on its way, and an event that is set with its first token."""
    began = asyncio.Event()

    async def read() -> Answer:
        answer = Answer()
        async with asyncio.timeout(DEADLINE_S):
            async for event in supervisor.generate(asked):
                answer.take(event)
                if answer.tokens:
                    began.set()
        return answer

    return asyncio.create_task(read()), began


def make_fault_injector(folder: Path) -> Path:
    """tests/supervisor/fault_injector.py as a program."""
    program = folder / "fault_injector"
    program.write_text(f"#!{sys.executable}\n" + (Path(__file__).parent / "fault_injector.py").read_text())
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


@dataclass(frozen=True)
class Footprint:
    """What this process holds and has started."""

    n_children: int
    descriptors: tuple[str, ...]
    temporary: frozenset[str]

    @classmethod
    def now(cls) -> Footprint:
        gc.collect()
        descriptors = []
        for fd in os.listdir("/proc/self/fd"):  # noqa: PTH208
            try:
                target = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115
            except OSError:
                continue  # the one that lists them
            descriptors.append(target.partition(":")[0])
        return cls(
            len(psutil.Process().children(recursive=True)),
            tuple(sorted(descriptors)),
            frozenset(path.name for path in Path(tempfile.gettempdir()).iterdir()),
        )
