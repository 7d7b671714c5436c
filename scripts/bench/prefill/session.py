"""An agent's session turn by turn, with the prefix cache, with sparse reading and with both: tokens read before each
first token, and the time to it. It must not know how a table looks.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from luce.protocol import Token
from scripts.bench.memory.agent_session import Conversation, SessionShape, plan_steps
from scripts.bench.residency.sides import DEADLINE_S
from tests.daemon_driver import DaemonDriver, gen_line

SIDES = {
    "cache": "",
    "sparse": "reuse=0 prefill=sparse prefill_keep={share}",
    "both": "prefill=sparse prefill_keep={share}",
}


@dataclass(frozen=True)
class Turn:
    side: str
    number: int
    n_prompt: int
    n_read: int
    """Computed for it: neither known nor left out."""
    seconds: float


def measure_session(
    start: Callable[[int], DaemonDriver], shape: SessionShape, share: float, think_s: float, n_sessions: int,
    report: Callable[[Turn], None],
) -> list[Turn]:  # fmt: skip
    """Each side has a daemon of its own. `think_s`: what the client does between two turns; a repair has that time."""
    turns = []
    for seed in range(n_sessions):
        system, steps = plan_steps(shape, seed)
        first = [step for step in steps if step.conversation == 0][: shape.n_turns]
        order = list(SIDES)
        random.Random(seed).shuffle(order)
        for side in order:
            with start(shape.n_tokens + 4 * shape.n_answer * shape.n_turns) as daemon:
                conversation = Conversation()
                conversation.say(system)
                for number, step in enumerate(first, 1):
                    conversation.say(step.message)
                    turns.append(_turn(daemon, side, number, conversation, shape.n_answer, share))
                    report(turns[-1])
                    _wait(daemon, think_s)
    return turns


def _turn(
    daemon: DaemonDriver, side: str, number: int, conversation: Conversation, n_answer: int, share: float
) -> Turn:
    began_s = perf_counter()
    daemon.send(gen_line(1, n_answer, conversation.tokens, f"ignore_eos=1 {SIDES[side].format(share=share)}"))
    first = daemon.next_token(DEADLINE_S)
    assert isinstance(first, Token)
    seconds = perf_counter() - began_s
    tokens = [first.value, *daemon.tokens_until_end(DEADLINE_S)]
    ok = daemon.next_ok()
    n_read = (ok.n_read if ok.n_read is not None else ok.n_prompt) - ok.n_reused
    turn = Turn(side, number, len(conversation.tokens), n_read, seconds)
    conversation.answer(tokens)
    return turn


def _wait(daemon: DaemonDriver, seconds: float) -> None:
    """By the daemon's own clock, as a client that runs its tools does."""
    until_s = perf_counter() + seconds
    while perf_counter() < until_s:
        daemon.send("ping think")
        daemon.next_reply(DEADLINE_S)
