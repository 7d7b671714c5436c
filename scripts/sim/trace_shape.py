"""The shape of agents' sessions: what is drawn from to make as many as a simulation needs. Taken from transcripts, as
scripts/bench/sessions reads them. Knows no replica and no time but the transcripts' own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from scripts.bench.replay.prompts import Prepared
from scripts.bench.sessions.distributions import n_common

Array = npt.NDArray[Any]

# docs/benchmarks/memory.md, New sessions of coding agents and A task of coding agents: tokens of first prompts that
# another session of the same client finds again, and of its sub-agents'.
HEAD_TOKENS: Mapping[str, int] = {"claude": 14_000, "codex": 10_960}
SIDE_HEAD_TOKENS: Mapping[str, int] = {"claude": 10_000, "codex": 10_960}
# docs/benchmarks/memory.md, Eviction: 60 sessions, 4,487 requests, 526 M prompt tokens.
MEAN_TURNS = 75.0
MEAN_PROMPT = 117_000.0
DEFAULT_PAUSE_S = 5.0
OTHER_HEAD_TOKENS = 9_000  # docs/benchmarks/memory.md: opencode's first prompt


@dataclass(frozen=True)
class TurnPool:
    """Turns that are drawn from: all three of one turn together."""

    added: Array
    """Tokens that people and tools bring, behind the answer before."""
    answer: Array
    pause_s: Array


@dataclass(frozen=True)
class Shape:
    clients: tuple[str, ...]
    weights: Array
    """How many of the sessions are each client's."""
    head: Array
    side_head: Array
    first: Array
    """Tokens of a first prompt behind its head."""
    main: tuple[TurnPool, ...]
    side: TurnPool
    side_turns: Array
    side_share: float
    """Turns of a main conversation that start a sub-agent."""
    mean_turns: float
    window: int = 200_000
    compacted_at: float = 0.9
    summary: int = 3_000
    fork_share: float = 0.2
    """Sub-agents that go on from the conversation's text; assumed."""

    @property
    def mean_growth(self) -> float:
        return float(sum(weight * (pool.added + pool.answer).mean() for weight, pool in self._weighted()))

    @property
    def mean_answer(self) -> float:
        return float(sum(weight * pool.answer.mean() for weight, pool in self._weighted()))

    @property
    def mean_pause_s(self) -> float:
        return float(sum(weight * pool.pause_s.mean() for weight, pool in self._weighted()))

    def _weighted(self) -> list[tuple[float, TurnPool]]:
        return list(zip(self.weights.tolist(), self.main, strict=True))

    @property
    def mean_prompt(self) -> float:
        """Sessions' lengths are drawn geometrically, so a turn stands behind as many as are to come. At most what the
        window leaves between compactions."""
        head = float((self.weights * self.head).sum())
        return min(head + float(self.first.mean()) + (self.mean_turns - 1) * self.mean_growth, self.window * 0.5)


def stretched(shape: Shape, mean_prompt: float) -> Shape:
    """With more tokens in each turn, so that prompts would have `mean_prompt` tokens in the mean without compactions.
    Heads stay."""
    head = float((shape.weights * shape.head).sum())
    now = float(shape.first.mean()) + (shape.mean_turns - 1) * shape.mean_growth
    factor = max((mean_prompt - head) / now, 0.01)
    return replace(
        shape,
        first=_scaled(shape.first, factor),
        main=tuple(_stretched_pool(pool, factor) for pool in shape.main),
        side=_stretched_pool(shape.side, factor),
    )


def _stretched_pool(pool: TurnPool, factor: float) -> TurnPool:
    return replace(pool, added=_scaled(pool.added, factor), answer=_scaled(pool.answer, factor))


def _scaled(tokens: Array, factor: float) -> Array:
    return np.maximum((tokens * factor).astype(np.int64), 1)


def shape_of(sessions: Sequence[Prepared], mean_turns: float = MEAN_TURNS) -> Shape:
    """Raises ValueError if there is no conversation of two requests."""
    main: dict[str, list[tuple[int, int, float]]] = {}
    side: list[tuple[int, int, float]] = []
    first: list[int] = []
    side_turns: list[int] = []
    for prepared in sessions:
        client = prepared.session.client
        n_of: dict[str, int] = {}
        for prompt, before in _with_earlier(prepared):
            conversation = prepared.session.turns[prompt.number - 1].conversation
            n_of[conversation] = n_of.get(conversation, 0) + 1
            if before is None:
                behind = [at for at in prompt.boundaries if at < len(prompt.ids)]
                first.append(max(len(prompt.ids) - min(behind, default=0), 1))
                continue
            n_new = len(prompt.ids) - n_common(before.ids, prompt.ids)
            pause_s = DEFAULT_PAUSE_S if prompt.think_s is None else prompt.think_s
            turn = max(n_new - before.n_answer, 1), prompt.n_answer, pause_s
            (main.setdefault(client, []) if prompt.kind == "main" else side).append(turn)
        kinds = {turn.conversation: turn.kind for turn in prepared.session.turns}
        side_turns += [n for name, n in n_of.items() if kinds[name] != "main"]
    if not main:
        raise ValueError("there is no conversation of two requests in these transcripts")
    clients = tuple(sorted(main))
    n_main = sum(len(turns) for turns in main.values())
    n_sessions = [sum(prepared.session.client == client for prepared in sessions) for client in clients]
    return Shape(
        clients=clients,
        weights=np.array(n_sessions) / sum(n_sessions),
        head=np.array([HEAD_TOKENS.get(client, OTHER_HEAD_TOKENS) for client in clients]),
        side_head=np.array([SIDE_HEAD_TOKENS.get(client, OTHER_HEAD_TOKENS) for client in clients]),
        first=np.array(first),
        main=tuple(_pool(main[client]) for client in clients),
        side=_pool(side or [turn for turns in main.values() for turn in turns]),
        side_turns=np.array(side_turns or [1]),
        side_share=len(side_turns) / n_main,
        mean_turns=mean_turns,
    )


def _pool(turns: Sequence[tuple[int, int, float]]) -> TurnPool:
    added, answer, pause_s = zip(*turns, strict=True)
    return TurnPool(np.array(added), np.array(answer), np.array(pause_s, dtype=float))


def _with_earlier(prepared: Prepared) -> list[tuple[Any, Any]]:
    """Each prompt with the one before it in its conversation."""
    last: dict[str, Any] = {}
    found = []
    for prompt in prepared.prompts:
        conversation = prepared.session.turns[prompt.number - 1].conversation
        found.append((prompt, last.get(conversation)))
        last[conversation] = prompt
    return found
