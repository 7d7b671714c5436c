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
    n_moves: int = 0  # of texts' memory from one engine to another
    n_failed_moves: int = 0
    n_moved_tokens: int = 0
    n_moved_bytes: int = 0
