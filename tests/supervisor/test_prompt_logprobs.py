"""A prompt's own log-probabilities from a supervisor: each comes once, in order, before the answer, also where engines
are killed while the prompt is read.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import aclosing
from typing import Any

import pytest

from luce.supervisor import FinishedEvent, GenerateRequest, PromptTokenEvent, Supervisor, SupervisorConfig, TokenEvent
from tests.daemon_driver import random_prompt
from tests.supervisor.streams import DEADLINE_S

NEAR = 1e-3


async def read(
    supervisor: Supervisor, asked: GenerateRequest, kill_at: frozenset[int] = frozenset()
) -> tuple[list[PromptTokenEvent], list[int]]:
    """Engines are killed when the prompt's token at such a position has come."""
    rows: list[PromptTokenEvent] = []
    tokens: list[int] = []
    ended: FinishedEvent | None = None
    async with asyncio.timeout(DEADLINE_S), aclosing(supervisor.generate(asked)) as events:
        async for event in events:
            if isinstance(event, PromptTokenEvent):
                assert not tokens, "a row behind a token"
                rows.append(event)
                if event.position in kill_at:
                    for pid in supervisor.engine_pids():
                        os.kill(pid, signal.SIGKILL)
            elif isinstance(event, TokenEvent):
                tokens.append(event.token)
            elif isinstance(event, FinishedEvent):
                ended = event
    assert ended is not None
    return rows, tokens


@pytest.mark.parametrize(
    "values",
    [
        {"max_tokens": 0},
        pytest.param({"max_tokens": 8}, marks=pytest.mark.full_only),
        {"max_tokens": 8, "n_logprobs": 1},
    ],
)
async def test_none_is_lost_or_repeated_when_engines_die(brisk: SupervisorConfig, values: dict[str, Any]) -> None:
    prompt = random_prompt(900)
    asked = GenerateRequest(prompt_ids=prompt, n_prompt_logprobs=2, ignore_eos=True, **values)
    async with Supervisor(brisk) as supervisor:
        expected, answer = await read(supervisor, asked)
        assert [row.position for row in expected] == list(range(1, 900))
        assert [row.logprobs[0][0] for row in expected] == prompt[1:]
        rows, tokens = await read(supervisor, asked, kill_at=frozenset({40, 500}))
        assert supervisor.status().engines[0].n_deaths == 2
    assert [row.position for row in rows] == list(range(1, 900))
    told = [row.logprobs[0][1] for row in rows]
    assert told == pytest.approx([row.logprobs[0][1] for row in expected], abs=NEAR)
    assert len(tokens) == len(answer) == values["max_tokens"]
