"""The agents: so many sessions at once, each one conversation with the sub-agents that it starts. Says which requests
are due and takes note of their answers; knows no replica.

Who has ended begins anew at once as another session, so the number of sessions stays, and agents who wait send less, as
in life. How many turns a session has is drawn geometrically: it ends behind any turn with the same probability.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from scripts.sim.chains import Chains
from scripts.sim.trace_shape import Shape, TurnPool

Array = npt.NDArray[Any]

IDLE, ASKED, AWAITS_SUB_AGENTS, FREE = 0, 1, 2, 3
COMPACTION_TOKENS = 200  # what asks for the summary
MEAN_SIDE_SLOTS = 0.5  # of sub-agents at once, for each session


class Sessions:
    """Actors: first the main conversations, then room for sub-agents."""

    def __init__(self, shape: Shape, chains: Chains, n_sessions: int, rng: np.random.Generator) -> None:
        self._shape = shape
        self._chains = chains
        self._rng = rng
        self.n_sessions = n_sessions
        n_actors = n_sessions + max(4, int(n_sessions * MEAN_SIDE_SLOTS))
        self.state = np.full(n_actors, FREE, dtype=np.int8)
        self.due_s = np.full(n_actors, np.inf)
        self.client = np.zeros(n_actors, dtype=np.int64)
        self.chain = np.zeros(n_actors, dtype=np.int64)
        self.prompt = np.zeros(n_actors, dtype=np.int64)
        self.answer = np.zeros(n_actors, dtype=np.int64)
        self.key = np.zeros(n_actors, dtype=np.int64)
        """The session's key: a sub-agent has its session's."""
        self.known = np.zeros(n_actors, dtype=np.int64)
        """What had been read of each before the simulation began."""
        self._compacting = np.zeros(n_actors, dtype=bool)
        self._turns_left = np.zeros(n_actors, dtype=np.int64)
        self._starter = np.zeros(n_actors, dtype=np.int64)
        self._n_keys = 0
        no_parents = np.full(len(shape.clients), -1)
        self._heads = chains.begin(no_parents, 0 * no_parents)
        self._side_heads = chains.begin(no_parents, 0 * no_parents)
        self._begin_all()

    def _begin_all(self) -> None:
        """As if they had run for long: each within its session, at any moment of a pause."""
        main = np.arange(self.n_sessions)
        self._begin_sessions(main, np.zeros(len(main)))
        turns = self._rng.geometric(1 / self._shape.mean_turns, len(main)) - 1
        grown = self.prompt[main] + (turns * self._shape.mean_growth).astype(np.int64)
        limit = int(self._shape.window * self._shape.compacted_at)
        least = self._shape.head[self.client[main]] + self._shape.summary
        over = grown > limit
        grown[over] = least[over] + (grown[over] - least[over]) % np.maximum(limit - least[over], 1)
        self.prompt[main] = np.minimum(grown, limit)
        begun = turns > 0
        self.known[main[begun]] = np.maximum(
            self.prompt[main[begun]] - int(self._shape.mean_growth), self._shape.head[self.client[main[begun]]]
        )
        cycle_s = self._shape.mean_pause_s + 10
        self.due_s[main] = self._rng.uniform(0, cycle_s, len(main))

    def due_before(self, until_s: float) -> Array:
        """Actors whose request is due, the earliest first; they count as asked from here on."""
        due = np.flatnonzero((self.state == IDLE) & (self.due_s < until_s))
        self.state[due] = ASKED
        return due[np.argsort(self.due_s[due], kind="stable")]

    def answered(self, actors: Array, ended_s: Array) -> None:
        """Their requests were answered, at these times."""
        is_main = actors < self.n_sessions
        self._main_answered(actors[is_main], ended_s[is_main])
        self._side_answered(actors[~is_main], ended_s[~is_main])

    def _main_answered(self, actors: Array, ended_s: Array) -> None:
        if len(actors) == 0:
            return
        was_compacting = self._compacting[actors]
        self._continue_compacted(actors[was_compacting], ended_s[was_compacting])
        actors, ended_s = actors[~was_compacting], ended_s[~was_compacting]
        ends = self._rng.random(len(actors)) < 1 / self._shape.mean_turns
        self._begin_sessions(actors[ends], ended_s[ends])
        actors, ended_s = actors[~ends], ended_s[~ends]
        self._next_turn(actors, ended_s)
        limit = self._shape.window * self._shape.compacted_at
        full = self.prompt[actors] + self.answer[actors] > limit
        self._compact(actors[full], ended_s[full])
        actors = actors[~full]
        self._start_sub_agents(actors[self._rng.random(len(actors)) < self._shape.side_share])

    def _begin_sessions(self, actors: Array, ended_s: Array) -> None:
        n = len(actors)
        if n == 0:
            return
        shape = self._shape
        client = self._rng.choice(len(shape.clients), size=n, p=shape.weights)
        self.client[actors] = client
        self.key[actors] = self._n_keys + np.arange(n)
        self._n_keys += n
        self.chain[actors] = self._chains.begin(self._heads[client], shape.head[client])
        self.prompt[actors] = shape.head[client] + self._rng.choice(shape.first, n)
        _, answer, pause_s = self._draw(actors)
        self.answer[actors] = answer
        self.due_s[actors] = ended_s + pause_s
        self.state[actors] = IDLE

    def _draw(self, actors: Array) -> tuple[Array, Array, Array]:
        """A turn for each, of its client's."""
        added, answer = np.zeros((2, len(actors)), dtype=np.int64)
        pause_s = np.zeros(len(actors))
        for number, pool in enumerate(self._shape.main):
            which = np.flatnonzero(self.client[actors] == number)
            added[which], answer[which], pause_s[which] = self._draw_of(pool, len(which))
        return added, answer, pause_s

    def _draw_of(self, pool: TurnPool, n: int) -> tuple[Array, Array, Array]:
        drawn = self._rng.integers(len(pool.added), size=n)
        return pool.added[drawn], pool.answer[drawn], pool.pause_s[drawn]

    def _next_turn(self, actors: Array, ended_s: Array) -> None:
        added, answer, pause_s = self._draw(actors)
        self.prompt[actors] += self.answer[actors] + added
        self.answer[actors] = answer
        self.due_s[actors] = ended_s + pause_s
        self.state[actors] = IDLE

    def _compact(self, actors: Array, ended_s: Array) -> None:
        """The window is full: the next request asks for a summary."""
        limit = int(self._shape.window * self._shape.compacted_at)
        self.prompt[actors] = np.minimum(self.prompt[actors] + COMPACTION_TOKENS, limit + COMPACTION_TOKENS)
        self.answer[actors] = self._shape.summary
        self.due_s[actors] = ended_s
        self._compacting[actors] = True

    def _continue_compacted(self, actors: Array, ended_s: Array) -> None:
        """The summary takes the place of all behind the head."""
        self._compacting[actors] = False
        head = self._shape.head[self.client[actors]]
        self.chain[actors] = self._chains.begin(self._heads[self.client[actors]], head)
        added, answer, _ = self._draw(actors)
        self.prompt[actors] = head + self._shape.summary + added
        self.answer[actors] = answer
        self.due_s[actors] = ended_s
        self.state[actors] = IDLE

    def _start_sub_agents(self, starters: Array) -> None:
        """They go first: the conversation waits for them. Without room for one it goes on alone."""
        free = np.flatnonzero(self.state[self.n_sessions :] == FREE)[: len(starters)] + self.n_sessions
        starters = starters[: len(free)]
        n = len(starters)
        if n == 0:
            return
        shape, client = self._shape, self.client[starters]
        forks = self._rng.random(n) < shape.fork_share
        parents = np.where(forks, self.chain[starters], self._side_heads[client])
        behind = self._chains.known[self.chain[starters]]
        forked_at = np.where(forks, behind, shape.side_head[client])
        self.client[free] = client
        self.key[free] = self.key[starters]
        self.chain[free] = self._chains.begin(parents, forked_at)
        self.prompt[free] = forked_at + self._rng.choice(shape.first, n)
        _, self.answer[free], _ = self._draw_of(shape.side, n)
        self._turns_left[free] = self._rng.choice(shape.side_turns, n)
        self._starter[free] = starters
        self.due_s[free] = self.due_s[starters]
        self.state[free] = IDLE
        self.state[starters] = AWAITS_SUB_AGENTS

    def _side_answered(self, actors: Array, ended_s: Array) -> None:
        if len(actors) == 0:
            return
        self._turns_left[actors] -= 1
        done = self._turns_left[actors] <= 0
        starters = self._starter[actors[done]]
        self.state[starters] = IDLE
        self.due_s[starters] = ended_s[done]
        self.state[actors[done]] = FREE
        actors, ended_s = actors[~done], ended_s[~done]
        added, answer, pause_s = self._draw_of(self._shape.side, len(actors))
        self.prompt[actors] += self.answer[actors] + added
        self.answer[actors] = answer
        self.due_s[actors] = ended_s + pause_s
        self.state[actors] = IDLE
