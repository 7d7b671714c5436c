"""Totals: what became of requests since the start, for status and metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Totals:
    n_requests: int = 0
    n_finished: int = 0
    n_failed: int = 0
    n_cancelled: int = 0
    n_resumes: int = 0
    n_tokens: int = 0
