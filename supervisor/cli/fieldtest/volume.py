"""Volume: how much a field test measures, and which one fits a machine and a time. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    name: str
    exact_lengths: tuple[int, ...]
    n_exact_answer: int
    depths: tuple[int, ...]
    n_rounds: int
    """Measurements at each depth."""
    lanes: tuple[int, ...]
    n_answer: int
    n_turns: int
    n_turn_answer: int
    n_draft_rounds: int
    n_draft_answer: int


VOLUMES = (
    Volume(
        name="large", exact_lengths=(1024, 4096), n_exact_answer=48, depths=(64, 1024, 4096, 16384), n_rounds=3,
        lanes=(1, 4, 16), n_answer=128, n_turns=12, n_turn_answer=128, n_draft_rounds=3, n_draft_answer=384,
    ),
    Volume(
        name="middle", exact_lengths=(256, 1024), n_exact_answer=24, depths=(64, 1024, 4096), n_rounds=2,
        lanes=(1, 4, 16), n_answer=64, n_turns=8, n_turn_answer=96, n_draft_rounds=2, n_draft_answer=192,
    ),
    Volume(
        name="small", exact_lengths=(256,), n_exact_answer=8, depths=(64, 512), n_rounds=1,
        lanes=(1, 4, 16), n_answer=16, n_turns=3, n_turn_answer=32, n_draft_rounds=1, n_draft_answer=96,
    ),
)  # fmt: skip


def volume_within(seconds: float, expected_s: Callable[[Volume], float]) -> Volume:
    """The largest that is expected to be done by then; else the smallest, which is cut."""
    return next((volume for volume in VOLUMES if expected_s(volume) <= seconds), VOLUMES[-1])
