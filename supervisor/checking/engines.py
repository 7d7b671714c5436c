"""CheckedEngine: one `luced` for the length of one check, and what it answers. EngineStarter starts it.

Knows the engine's client; knows nothing of what is compared. Every wait has its deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from luce.protocol import (
    Generate,
    GenerateOk,
    InlineSnapshotFailed,
    Logprobs,
    MemoryArgs,
    MemoryCommand,
    PromptLogprobs,
    SamplingArgs,
)
from luce.supervisor.checking.same_tokens import AnswerTokens, Step
from luce.supervisor.config import DaemonConfig
from luce.supervisor.engine.client import EngineClient, MemoryReply
from luce.supervisor.engine.generation import EngineDied, EngineError, TokenEvent
from luce.supervisor.engine.info import EngineInfo
from luce.supervisor.engine.process import EngineProcess, StopDeadlines

_START_TIMEOUT_S = 600.0  # a model of hundreds of GB from a slow disk
_SILENCE_TIMEOUT_S = 300.0  # a running engine reports the progress of a prompt several times a second
_CALL_TIMEOUT_S = 600.0  # unpark reads the model again
_STATUS_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 120.0  # it writes what is not on disk yet

COLD = MemoryArgs(reuse=False)
"""Nothing is taken from what the engine remembers."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request. Greedy unless `sampling` says otherwise."""

    prompt: Sequence[int]
    n: int
    memory: MemoryArgs = field(default_factory=MemoryArgs)
    sampling: SamplingArgs = field(default_factory=lambda: SamplingArgs(temperature=0.0))
    n_logprobs: int = 2
    n_prompt_logprobs: int | None = None
    """Of each token of the prompt so many of the likeliest; None: nothing is told of the prompt …"""
    prompt_logprobs_from: int = 0
    """… and before this position nothing either."""
    ignore_eos: bool = True


@dataclass(frozen=True, slots=True)
class Answer(AnswerTokens):
    final: GenerateOk
    prompt_steps: Sequence[Step] = ()
    """Of the prompt's tokens, where they were asked for."""

    @property
    def n_drafted(self) -> int:
        return 0 if self.final.speculation is None else self.final.speculation.n_drafted


@dataclass(slots=True)
class Tally:
    """What was done with engines so far."""

    n_starts: int = 0
    n_read: int = 0
    n_written: int = 0


class CheckedEngine:
    def __init__(self, client: EngineClient, info: EngineInfo, ready: dict[str, str], tally: Tally) -> None:
        self._client = client
        self._tally = tally
        self.info = info
        self.ready = ready

    async def ask(self, question: Question) -> Answer:
        """Raises EngineError, EngineDied, also where it falls silent."""
        command = Generate(
            prompt=tuple(question.prompt),
            n_generate=question.n,
            sampling=question.sampling,
            memory=question.memory,
            n_logprobs=question.n_logprobs,
            n_prompt_logprobs=question.n_prompt_logprobs,
            prompt_logprobs_from=question.prompt_logprobs_from,
            ignore_eos=question.ignore_eos,
        )
        tokens: list[int] = []
        steps: list[Step] = []
        prompt_steps: list[Step] = []
        async with await self._client.generate(command) as generation:
            while True:
                try:
                    async with asyncio.timeout(_SILENCE_TIMEOUT_S):
                        event = await anext(generation)
                except TimeoutError:
                    raise EngineDied(f"luced has said nothing for {_SILENCE_TIMEOUT_S:g} s") from None
                match event:
                    case TokenEvent(token=token):
                        tokens.append(token)
                    case Logprobs(entries=entries):
                        steps.append(entries)
                    case PromptLogprobs(entries=entries):
                        prompt_steps.append(entries)
                    case InlineSnapshotFailed(code=code, slot=slot):
                        raise EngineError(code, f"no snapshot was taken into slot {slot}")
                    case GenerateOk() as final:
                        self._tally.n_read += final.n_prompt - max(final.n_reused, final.restored or 0)
                        self._tally.n_written += final.n_generated
                        return Answer(tokens, steps, final, prompt_steps)

    async def ask_together(self, questions: Sequence[Question]) -> list[Answer]:
        """All in flight at once; answers in the order of the questions."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.ask(question)) for question in questions]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    async def call(self, command: MemoryCommand) -> MemoryReply:
        """Raises EngineError, EngineDied or TimeoutError."""
        async with asyncio.timeout(_CALL_TIMEOUT_S):
            return await self._client.post_call(command)

    async def status(self) -> dict[str, str]:
        return dict((await self._client.status(_STATUS_TIMEOUT_S)).fields)

    async def status_number(self, name: str) -> int:
        return int((await self.status()).get(name, "0"))


@dataclass(frozen=True, slots=True)
class EngineStarter:
    """Starts engines with the options that are to be checked, and what a check changes of them."""

    binary: Path
    config: DaemonConfig
    on_log: Callable[[str], None] | None = None
    tally: Tally = field(default_factory=Tally)

    @asynccontextmanager
    async def engine(self, **changes: Any) -> AsyncIterator[CheckedEngine]:
        """A ready engine, gone when the block is left. Raises StartError."""
        config = replace(self.config, **changes)
        async with await EngineProcess.spawn(self.binary, config, on_log=self.on_log) as process:
            ready = await process.wait_ready(_START_TIMEOUT_S)
            self.tally.n_starts += 1
            async with EngineClient(process) as client:
                yield CheckedEngine(client, EngineInfo.of(ready), dict(ready.fields), self.tally)
            await process.stop(StopDeadlines(quit_s=_END_TIMEOUT_S))
