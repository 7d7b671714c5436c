"""Metrics of the object store that memory travels through. It must not know who asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from luce.supervisor.supervisor_status import SupervisorStatus

_GAUGES = (
    ("files", "Files of this memory that the store has", "n_files"),
    ("bytes", "Their bytes", "n_bytes"),
    ("waiting_files", "Files that are to be written there", "n_waiting"),
)
_COUNTERS = (
    ("fetched_files", "Files that came from there", "n_fetched"),
    ("fetched_bytes", "Their bytes", "fetched_bytes"),
    ("written_files", "Files that were written there", "n_written"),
    ("written_bytes", "Their bytes", "written_bytes"),
    ("refused_files", "Files that were not what their names say", "n_refused"),
    ("removed_files", "Files that were deleted there, for their age or for room", "n_removed"),
    ("failures", "Requests that the store did not serve", "n_failures"),
)
_PROMPTS = (("helped", "n_helped"), ("late", "n_late"), ("dear", "n_dear"))


def store_families(status: SupervisorStatus) -> Iterator[Metric]:
    """Of all models together; without numbers where there is no store."""
    stores = status.cache_stores
    for name, text, field in _GAUGES:
        gauge = GaugeMetricFamily(f"luce_cache_store_{name}", text)
        if stores:
            gauge.add_metric([], float(sum(getattr(store, field) for store in stores)))
        yield gauge
    for name, text, field in _COUNTERS:
        counter = CounterMetricFamily(f"luce_cache_store_{name}", text)
        if stores:
            counter.add_metric([], float(sum(getattr(store.counts, field) for store in stores)))
        yield counter
    prompts = CounterMetricFamily(
        "luce_cache_store_prompts",
        "Prompts of which the store had more: helped (used), late (fetched too late), dear (reading was cheaper)",
        labels=["outcome"],
    )
    for outcome, field in _PROMPTS if stores else ():
        prompts.add_metric([outcome], float(sum(getattr(store.counts, field) for store in stores)))
    yield prompts
