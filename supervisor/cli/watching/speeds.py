"""How fast a server is, from two looks at what it has done so far. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Status = Mapping[str, Any]
"""As /status.json has it."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Between two looks; None: it cannot be told."""

    generated_per_s: float | None = None
    read_per_s: float | None = None
    """Tokens of prompts that were computed."""
    reused_share: float | None = None
    """Of all tokens of prompts, those that were in memory."""
    lanes: tuple[tuple[float | None, ...], ...] = ()
    """Of each engine, of each lane at work: tokens a second, read or generated."""


def speeds(now: Status, before: Status | None) -> Speeds:
    if before is None:
        return Speeds()
    elapsed_s = now["time_s"] - before["time_s"]
    generated = now["tokens"] - before["tokens"]
    if elapsed_s <= 0 or generated < 0:  # it has been started anew
        return Speeds()
    computed, reused = _risen(now, before, "tokens_in"), _risen(now, before, "tokens_reused")
    return Speeds(
        generated_per_s=generated / elapsed_s,
        read_per_s=None if computed is None else computed / elapsed_s,
        reused_share=None if computed is None or not reused else reused / (computed + reused),
        lanes=tuple(
            tuple(_lane_speed(lane, engine_before["running"], index, elapsed_s) for index, lane in enumerate(of_it))
            for of_it, engine_before in zip(
                (engine["running"] for engine in now["engines"]), before["engines"], strict=False
            )
        ),
    )


def _risen(now: Status, before: Status, figure: str) -> int | None:
    """Over all engines that said so both times. Each counts from its own start."""
    rises = [
        engine["figures"][figure] - earlier["figures"][figure]
        for engine, earlier in zip(now["engines"], before["engines"], strict=False)
        if figure in engine["figures"] and figure in earlier["figures"]
    ]
    return sum(rises) if rises and min(rises) >= 0 else None


def _lane_speed(lane: Mapping[str, int], before: list[Mapping[str, int]], index: int, elapsed_s: float) -> float | None:
    """None where it was another request that stood there."""
    if index >= len(before) or before[index]["n_prompt"] != lane["n_prompt"]:
        return None
    rise = sum(lane[part] - before[index][part] for part in ("n_read", "n_generated"))
    return rise / elapsed_s if rise >= 0 else None
