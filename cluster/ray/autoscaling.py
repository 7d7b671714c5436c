"""WaitingTokensPolicy: how many replicas there are to be, by what waits to be read and by how many answers run.

Ray pickles this module whole. It must not know replicas, only what they report (record_autoscaling_stats).
"""

from __future__ import annotations

from typing import Any

WAITING_TOKENS = 8192


class WaitingTokensPolicy:
    def __init__(self, waiting_tokens: int = WAITING_TOKENS) -> None:
        """`waiting_tokens`: that a replica may have before it."""
        self._waiting_tokens = waiting_tokens

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:
        """Ray keeps it between the least and the most, and waits its delays."""
        reported = context.aggregated_metrics or {}
        n_waiting = sum(reported.get("waiting_tokens", {}).values())
        n_open = sum(reported.get("open_requests", {}).values())
        lanes = list(reported.get("lanes", {}).values())
        if not lanes:
            return context.target_num_replicas, {}
        by_reading = n_waiting / self._waiting_tokens
        by_answers = n_open / (sum(lanes) / len(lanes))
        return max(by_reading, by_answers), {}
