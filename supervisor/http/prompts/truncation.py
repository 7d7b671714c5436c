"""Which messages of a conversation are left out where it is longer than the context and the client wants that rather
than a refusal. Pure.

What came first goes, up to a person's message; system texts stay. The cut moves in large steps that depend on what
comes before it alone: so that the next turn's prompt begins as this one's did, and is served from memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_STEP_CHARACTERS = 1  # of a step, for each token of the context: a quarter of it, where a token has four
_MOST_TOKENS = 4  # of a character, where a token is a byte of it
MAX_STEPS = 64
_SYSTEM = ("system", "developer")


def least_steps(n_prompt: int, n_ctx: int) -> int:
    """Fewer cannot make room: they leave out so many characters, and none of these is more than four tokens."""
    return max((n_prompt - n_ctx) // (_MOST_TOKENS * _STEP_CHARACTERS * n_ctx), 1)


def without_oldest(messages: Sequence[Mapping[str, Any]], n_steps: int, n_ctx: int) -> list[Mapping[str, Any]] | None:
    """None: there is no message from which on it could go on."""
    n_head = next((i for i, message in enumerate(messages) if message["role"] not in _SYSTEM), len(messages))
    n_dropped = 0
    for index in range(n_head, len(messages)):
        if index > n_head and messages[index]["role"] == "user" and n_dropped >= n_steps * n_ctx * _STEP_CHARACTERS:
            return [*messages[:n_head], *messages[index:]]
        n_dropped += len(json.dumps(messages[index], ensure_ascii=False, default=str))
    return None
