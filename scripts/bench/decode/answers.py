"""Answers: what requests that start together get, token by token on the client's clock, and the figures of it. Drives
luced over its pipes, so that no HTTP is in the way; it must not know what is compared.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import monotonic

from luce.protocol import End, Token, percent_encode
from tests.daemon_driver import DaemonDriver, gen_line

GREEDY, SAMPLED = "temp=0", "temp=0.7 top_k=40 top_p=0.95 seed=1"

TOOL_GRAMMAR = percent_encode('root ::= "<tool_call>\\n{" [^}]* "}\\n</tool_call>"')
CONSTRAINED = (
    f"{SAMPLED} grammar={TOOL_GRAMMAR} grammar_lazy=1 triggers=word:{percent_encode('<tool_call>')}"
    " think_budget=100000 think_start=10,11,12 think_end=13,14,15"
)
"""What requests with tools bring along. A random model hardly writes these ids: the grammar waits, the budget lasts."""

TOKEN_DEADLINE_S = 600.0


@dataclass(frozen=True)
class Answers:
    """Of each lane, when its tokens came, in seconds after the requests were sent."""

    times_s: Sequence[Sequence[float]]
    n_prompt: int
    """Of all lanes together."""

    @property
    def begin_s(self) -> float:
        """From here on every lane has its first token."""
        return max(times_s[0] for times_s in self.times_s)

    @property
    def end_s(self) -> float:
        """Here the first lane has its last one."""
        return min(times_s[-1] for times_s in self.times_s)

    @property
    def whole_s(self) -> float:
        """Here the last lane has its last one."""
        return max(times_s[-1] for times_s in self.times_s)

    @property
    def prefill(self) -> float:
        """Tokens a second of the prompts."""
        return self.n_prompt / self.begin_s

    @property
    def decode(self) -> float:
        """Tokens a second of all lanes, while all of them decode."""
        return self._rate(self.begin_s, self.end_s)

    def early(self, n: int) -> float:
        """The same up to the n-th token of the lane that began last."""
        return self._rate(self.begin_s, self._split_s(n))

    def rest(self, n: int) -> float:
        return self._rate(self._split_s(n), self.end_s)

    @property
    def worst_gap(self) -> float:
        """The longest gap between two tokens of a lane after its third one, in medians; while all lanes decode."""
        gaps_s = [
            after_s - before_s
            for times_s in self.times_s
            for before_s, after_s in pairwise(times_s[2:])
            if self.begin_s <= before_s and after_s <= self.end_s
        ]
        return max(gaps_s) / statistics.median(gaps_s) if gaps_s else 0.0

    def _split_s(self, n: int) -> float:
        last = max(self.times_s, key=lambda times_s: times_s[0])
        return min(last[min(n, len(last) - 2)], self.end_s)

    def _rate(self, from_s: float, to_s: float) -> float:
        if to_s <= from_s:
            return 0.0
        n_tokens = sum(bisect_right(times_s, to_s) - bisect_right(times_s, from_s) for times_s in self.times_s)
        return n_tokens / (to_s - from_s)


def ask(daemon: DaemonDriver, prompts: Sequence[Sequence[int]], n: int, keys: str = GREEDY) -> Answers:
    """Exactly n tokens for each prompt, all sent at once; nothing that was computed before is used."""
    lines = [gen_line(i, n, prompt, f"ignore_eos=1 reuse=0 {keys}") for i, prompt in enumerate(prompts)]
    times_s: list[list[float]] = [[] for _ in prompts]
    n_open = len(prompts)
    started_s = monotonic()
    daemon.send(*lines)
    while n_open:
        event = daemon.next_token(TOKEN_DEADLINE_S)
        if isinstance(event, Token):
            times_s[event.id].append(monotonic() - started_s)
        else:
            n_open -= 1
    for _ in prompts:
        daemon.next_ok()
    return Answers(times_s, sum(map(len, prompts)))


@dataclass(frozen=True)
class Beside:
    """What a running lane noticed of a prompt."""

    prompt_s: float
    gaps_s: Sequence[float]

    @property
    def longest_gap_s(self) -> float:
        return max(self.gaps_s)

    @property
    def slice_s(self) -> float:
        """Each slice lets the running lane have one token: what a slice and its decode step take together."""
        return self.prompt_s / len(self.gaps_s)


def ask_beside(daemon: DaemonDriver, running: Sequence[int], prompt: Sequence[int]) -> Beside:
    daemon.send(gen_line(1, 100_000, running, f"ignore_eos=1 {GREEDY}"))
    for _ in range(32):
        daemon.next_token()
    daemon.send(gen_line(2, 1, prompt, f"ignore_eos=1 reuse=0 {GREEDY}"))
    started_s = last_s = monotonic()
    gaps_s = []
    while (event := daemon.next_token(TOKEN_DEADLINE_S)).id != 2 or not isinstance(event, Token):
        gaps_s.append(monotonic() - last_s)
        last_s = monotonic()
    prompt_s = monotonic() - started_s
    daemon.send("cancel id=1")
    n_ends = 0
    while n_ends < 2:
        n_ends += isinstance(daemon.next_token(), End)
    for _ in range(3):  # two requests and the cancel itself
        daemon.next_reply()
    return Beside(prompt_s, gaps_s)
