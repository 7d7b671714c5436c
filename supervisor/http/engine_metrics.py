"""What engines say of themselves when they are asked, as numbers: for /metrics and the status page.

Asking waits for the engines' current step, a second at the most. It must not know what is done with the figures, which
PROTOCOL.md names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from luce.supervisor.http.app_context import Watched

_TIMEOUT_S = 1.0
_DECIMAL = re.compile(r"[0-9]{1,15}\.[0-9]{1,9}")

_LANE_PAGES = re.compile(r"([0-9]{1,9}):([0-9]{1,15})/([0-9]{1,15})/([0-9]{1,15})")

_PART = re.compile(r"time_([a-z_]+)_s")

EngineMetrics = dict[str, int | float | str]

LANE_TIERS = ("resident", "host", "disk")
"""Where a running text's pages lie. Copies on disk count beside the other two."""


async def ask_engines(watched: Watched) -> list[EngineMetrics]:
    """In the order of `status().engines`; empty for an engine that is not there, or too busy to answer."""
    return [numbers(said) for said in await watched.engine_status(_TIMEOUT_S)]


def numbers(said: Mapping[str, str]) -> EngineMetrics:
    """An engine's figures, those that are numbers as such."""
    return {name: _number(text) for name, text in said.items()}


def lane_pages(engine_metrics: EngineMetrics) -> dict[int, tuple[int, int, int]]:
    """By the engine's lane: the pages of its text in each of LANE_TIERS. Empty where nothing runs."""
    matches = map(_LANE_PAGES.fullmatch, str(engine_metrics.get("lane_pages", "")).split(","))
    return {int(m[1]): (int(m[2]), int(m[3]), int(m[4])) for m in matches if m is not None}


def step_seconds(engine_metrics: EngineMetrics) -> dict[str, float]:
    """By part of a step, idle time too: what the thread that computes has spent on it. They add up to all its time."""
    matches = ((_PART.fullmatch(name), value) for name, value in engine_metrics.items())
    return {m[1]: float(value) for m, value in matches if m is not None and not isinstance(value, str)}


def _number(text: str) -> int | float | str:
    if text.isascii() and text.isdigit():
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text
