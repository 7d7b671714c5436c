"""How much is asked: the suites, and what the packaged model is known to reach. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Suite:
    lengths: tuple[int, ...]
    """Of long prompts, in tokens."""
    n_samples: int
    """Questions of a task at each length."""
    n_calls: int
    """Of tools, and answers of replayed sessions."""
    n_problems: int | None
    """Of a published data set; None: all."""


SUITES: Mapping[str, Suite] = {
    "quick": Suite((1024,), 6, 24, 20),
    "standard": Suite((1024, 4096, 16384), 20, 100, 200),
    "full": Suite((4096, 16384, 32768, 65536, 131072), 40, 200, None),
}

PACKAGED_AT_LEAST: Mapping[str, float] = {
    "needle": 0.8,
    "needle-many": 0.8,
    "tools-formed": 0.7,
    "tools-name": 0.5,
    "tools-arguments": 0.25,
    "replay-formed": 0.9,
    "replay-tool": 0.15,
    "replay-arguments": 0.15,
    "replay-text": 0.7,
}
"""What the packaged model reaches whatever the seed, where nothing is wrong with the engine. What it cannot do at all
is not here."""
PACKAGED_LENGTH = 6144
"""Up to so many tokens."""
