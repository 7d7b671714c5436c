"""What the supervisor's tests share: requests, their answers, and what must not be left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from luce.supervisor import FinishedEvent, GenerateRequest, PrefillEvent, Supervisor, SupervisorConfig, TokenEvent

Meddled = Callable[..., SupervisorConfig]
PROMPT = (329, 285, 1420, 261, 1319)
DEADLINE_S = 120.0


@dataclass
class Answer:
    """What one request has brought."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    progress: list[PrefillEvent] = field(default_factory=list)
    finished: FinishedEvent | None = None

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


async def collect(supervisor: Supervisor, asked: GenerateRequest, *, deadline_s: float = DEADLINE_S) -> Answer:
    """The whole answer. Tokens have to come in order, and the last event last."""
    answer = Answer()
    async with asyncio.timeout(deadline_s), aclosing(supervisor.generate(asked)) as events:
        async for event in events:
            assert answer.finished is None, "an event after the last one"
            if isinstance(event, TokenEvent):
                assert event.index == len(answer.tokens), "a token was lost or repeated"
                answer.tokens.append(event.token)
                if event.logprobs is not None:
                    answer.logprobs.append(event.logprobs)
            elif isinstance(event, PrefillEvent):
                answer.progress.append(event)
            else:
                answer.finished = event
    assert answer.end.n_generated == len(answer.tokens)
    return answer


async def first_token(supervisor: Supervisor, asked: GenerateRequest) -> tuple[asyncio.Task[Answer], asyncio.Event]:
    """The answer on its way, and an event that is set with its first token."""
    began = asyncio.Event()

    async def read() -> Answer:
        answer = Answer()
        async with asyncio.timeout(DEADLINE_S):
            async for event in supervisor.generate(asked):
                if isinstance(event, TokenEvent):
                    assert event.index == len(answer.tokens)
                    answer.tokens.append(event.token)
                    began.set()
                elif isinstance(event, FinishedEvent):
                    answer.finished = event
        return answer

    return asyncio.create_task(read()), began


def make_meddler(folder: Path) -> Path:
    """tests/supervisor/meddler.py as a program."""
    program = folder / "meddler"
    program.write_text(f"#!{sys.executable}\n" + (Path(__file__).parent / "meddler.py").read_text())
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
