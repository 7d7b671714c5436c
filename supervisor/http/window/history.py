"""History: how things stood in the last hour, one sample every few seconds, in a table of fixed size.

What was not measured in a sample (nothing came first, an engine was too busy to say) is NaN. It must not know who
looks.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from luce.supervisor.http.app_context import Watched
from luce.supervisor.http.engine_metrics import EngineMetrics, ask_engines
from luce.supervisor.http.request_records import RequestRecords
from luce.supervisor.supervisor_status import SupervisorStatus

INTERVAL_S = 5.0
N_SAMPLES = 720  # an hour
COLUMNS = (
    "time",  # of day, in seconds
    "tokens_per_s",
    "first_token_s",  # the median of those that came in the sample's time
    "cached_share",
    "running",
    "waiting",
    "device_pages",
    "host_bytes",
    "disk_bytes",
    "deaths",  # of engines, since the start
)


class History:
    def __init__(self, n_samples: int = N_SAMPLES) -> None:
        self._table = np.full((n_samples, len(COLUMNS)), np.nan)
        self._n_taken = 0
        self._n_tokens = 0
        self._taken_s: float | None = None

    def take(
        self,
        status: SupervisorStatus,
        engine_metrics: list[EngineMetrics],
        records: RequestRecords,
        *,
        time_s: float,
        now_s: float,
    ) -> None:
        """`now_s`: by a clock that nobody sets."""
        first_tokens_s = records.take_first_tokens_s()
        n_prompt, n_cached = records.take_prompts()
        # The first sample has no rate yet.
        passed_s = np.nan if self._taken_s is None else now_s - self._taken_s
        sample = {
            "time": time_s,
            "tokens_per_s": max(status.n_tokens - self._n_tokens, 0) / passed_s,
            "first_token_s": statistics.median(first_tokens_s) if first_tokens_s else np.nan,
            "cached_share": n_cached / n_prompt if n_prompt else np.nan,
            "running": sum(len(engine.running) for engine in status.engines),
            "waiting": status.n_waiting,
            "device_pages": _sum(engine_metrics, "pages_resident"),
            "host_bytes": _sum(engine_metrics, "host_bytes"),
            "disk_bytes": _sum(engine_metrics, "disk_bytes"),
            "deaths": sum(engine.n_deaths for engine in status.engines),
        }
        self._table[self._n_taken % len(self._table)] = [sample[name] for name in COLUMNS]
        self._n_taken += 1
        self._n_tokens, self._taken_s = status.n_tokens, now_s

    def after(self, time_s: float) -> Mapping[str, list[float | None]]:
        """The samples that are younger, oldest first, by column."""
        n_rows = len(self._table)
        rows = np.roll(self._table, -self._n_taken % n_rows if self._n_taken > n_rows else 0, axis=0)
        rows = rows[rows[:, 0] > time_s]  # rows that are still empty are not
        return {name: _values(rows[:, column]) for column, name in enumerate(COLUMNS)}

    async def run(self, watched: Watched, records: RequestRecords) -> None:
        """Until it is cancelled."""
        while True:
            engine_metrics = await ask_engines(watched)
            self.take(watched.status(), engine_metrics, records, time_s=time.time(), now_s=time.monotonic())
            await asyncio.sleep(INTERVAL_S)


def _sum(engine_metrics: list[EngineMetrics], name: str) -> float:
    """NaN where no engine has said it."""
    values = [said[name] for said in engine_metrics if name in said]
    return float(sum(value for value in values if not isinstance(value, str))) if values else np.nan


def _values(column: np.ndarray[Any, Any]) -> list[float | None]:
    return [None if np.isnan(value) else round(float(value), 4) for value in column]
