"""Metrics of the engines: what each says of itself when it is asked, as Prometheus' families.

Each engine counts for itself, from its own start: a sum over engines would fall by a part when one of them is started
again. What an engine does not say, being gone, busy or older, has no value. It must not know who asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from luce.supervisor.http.engine_metrics import LANE_TIERS, lane_pages, step_seconds

if TYPE_CHECKING:
    from luce.supervisor.http.engine_metrics import EngineMetrics
    from luce.supervisor.supervisor_status import EngineStatus

    Engine = tuple[str, EngineMetrics]
    """Its name, and what it said."""

_Kind = type[CounterMetricFamily] | type[GaugeMetricFamily]

_MEMORY: tuple[tuple[_Kind, str, str, str], ...] = (
    (GaugeMetricFamily, "luce_engine_lanes_busy", "Lanes with a text that is being read or written", "lanes_busy"),
    (GaugeMetricFamily, "luce_engine_queued", "Requests that wait in the engine", "queued"),
    (GaugeMetricFamily, "luce_engine_suspended", "Running texts that wait for room in the pool", "suspended"),
    (CounterMetricFamily, "luce_engine_suspensions", "Times that one had to", "suspensions"),
    (CounterMetricFamily, "luce_engine_computed_prompt_tokens", "Tokens of prompts that were computed", "tokens_in"),
    (CounterMetricFamily, "luce_engine_reused_prompt_tokens", "Tokens of prompts that were known", "tokens_reused"),
    (CounterMetricFamily, "luce_engine_generated_tokens", "Tokens that were generated", "tokens_out"),
    (GaugeMetricFamily, "luce_engine_pool_tokens", "Tokens that the pool has room for", "pool"),
    (GaugeMetricFamily, "luce_engine_pool_used_tokens", "Of it, those of running texts", "cells_used"),
    (GaugeMetricFamily, "luce_engine_pool_pages", "Pages of known texts in the pool", "pages_resident"),
    (GaugeMetricFamily, "luce_engine_pool_aside_pages", "Of these, set aside of all computing", "pages_aside"),
    (CounterMetricFamily, "luce_engine_pages_evicted", "Pages that left the pool", "pages_evicted"),
    (CounterMetricFamily, "luce_engine_pages_dropped", "Pages that left all memory", "pages_dropped"),
    (GaugeMetricFamily, "luce_engine_host_pages", "Pages in host memory", "pages_host"),
    (GaugeMetricFamily, "luce_engine_host_checkpoints", "Checkpoints in host memory", "tails_host"),
    (GaugeMetricFamily, "luce_engine_host_bytes", "Host memory of pages and checkpoints", "host_bytes"),
    (GaugeMetricFamily, "luce_engine_pinned_bytes", "Of it and of the pool, held by slots", "pinned_bytes"),
    (GaugeMetricFamily, "luce_engine_disk_files", "Files of pages and checkpoints on disk", "disk_files"),
    (GaugeMetricFamily, "luce_engine_disk_bytes", "Their size", "disk_bytes"),
    (CounterMetricFamily, "luce_engine_disk_written_files", "Files that were written", "disk_written"),
    (CounterMetricFamily, "luce_engine_disk_read_files", "Files that were read", "disk_read"),
    (CounterMetricFamily, "luce_engine_disk_adopted_files", "Files that others have brought", "disk_adopted"),
    (CounterMetricFamily, "luce_engine_disk_corrupt_files", "Files that were damaged", "disk_corrupt"),
    (GaugeMetricFamily, "luce_engine_backlog_bytes", "Output that nobody has read yet", "backlog_bytes"),
)
"""What every engine says, whatever its pool, by the word that PROTOCOL.md has for it."""


_EXPERTS: tuple[tuple[_Kind, str, str, str], ...] = (
    (GaugeMetricFamily, "luce_engine_experts", "Experts of all layers", "experts"),
    (GaugeMetricFamily, "luce_engine_experts_resident", "Of them, those on the GPU", "experts_resident"),
    (GaugeMetricFamily, "luce_engine_experts_least", "The fewest there can be", "experts_least"),
    (GaugeMetricFamily, "luce_engine_experts_most", "The most there can be", "experts_most"),
    (GaugeMetricFamily, "luce_engine_experts_device_bytes", "GPU memory of experts", "experts_device_bytes"),
    (GaugeMetricFamily, "luce_engine_experts_host_bytes", "Host memory of experts", "experts_host_bytes"),
    (CounterMetricFamily, "luce_engine_expert_hits", "Experts that were read on the GPU", "expert_hits"),
    (CounterMetricFamily, "luce_engine_expert_misses", "Experts that were read from the host", "expert_misses"),
    (CounterMetricFamily, "luce_engine_expert_exchanges", "Experts that came onto the GPU", "expert_exchanges"),
    (CounterMetricFamily, "luce_engine_expert_moved_bytes", "Bytes copied for that, both ways", "expert_moved_bytes"),
    (CounterMetricFamily, "luce_engine_expert_wait_seconds", "Time that calls waited for that", "expert_wait_s"),
    (GaugeMetricFamily, "luce_engine_cache_cells", "Cells of the pool that have memory now", "cache_cells"),
    (GaugeMetricFamily, "luce_engine_cache_bytes", "GPU memory of these", "cache_bytes"),
)
"""Only of a mixture whose experts lie in two memories; the last ones where they share one with the pool."""


_READING: tuple[tuple[_Kind, str, str, str], ...] = (
    (CounterMetricFamily, "luce_engine_prefill_sparse", "Prompts that were read in parts", "prefill_sparse"),
    (CounterMetricFamily, "luce_engine_prefill_sparse_tokens", "Their tokens", "prefill_sparse_tokens"),
    (CounterMetricFamily, "luce_engine_prefill_left_out_tokens", "Of these, those not read", "prefill_left_out"),
    (GaugeMetricFamily, "luce_engine_prefill_repairs", "Such texts that are still to be read whole", "prefill_repairs"),
    (CounterMetricFamily, "luce_engine_prefill_repaired_tokens", "Tokens computed for that", "prefill_repaired"),
    (CounterMetricFamily, "luce_engine_prefill_scored_tokens", "Tokens that the scorer has read", "prefill_scored"),
    (GaugeMetricFamily, "luce_engine_prefill_scorer_bytes", "Memory of the scorer", "prefill_scorer_bytes"),
    (GaugeMetricFamily, "luce_engine_prefill_keys_bytes", "Host memory of its keys of texts", "prefill_keys_bytes"),
)
"""Of prompts that are read in parts, by the choice of a small model."""


def engine_families(asked: Sequence[tuple[EngineStatus, EngineMetrics]]) -> Iterator[Metric]:
    engines = [(status.name, engine_metrics) for status, engine_metrics in asked]
    yield from _time_families(engines)
    for kind, name, text, key in _MEMORY:
        yield _family(kind, name, text, key, engines)
    yield from _limit_families([status for status, engine_metrics in asked if engine_metrics])
    yield _disk_trouble(engines)
    yield from _page_families(engines)
    for kind, name, text, key in (*_READING, *_EXPERTS):
        yield _family(kind, name, text, key, engines)


def _family(kind: _Kind, name: str, text: str, key: str, engines: Sequence[Engine]) -> Metric:
    family = kind(name, text, labels=["engine"])
    for engine, engine_metrics in engines:
        value = engine_metrics.get(key)
        if isinstance(value, int | float):
            family.add_metric([engine], value)
    return family


def _limit_families(engines: Sequence[EngineStatus]) -> Iterator[Metric]:
    """What the tiers may take, as the ready line has it."""
    host = GaugeMetricFamily("luce_engine_host_limit_bytes", "Most that host memory may take", labels=["engine"])
    disk = GaugeMetricFamily("luce_engine_disk_limit_bytes", "Most that files may take", labels=["engine"])
    for status in engines:
        if status.info is not None:
            host.add_metric([status.name], status.info.host_bytes)
            disk.add_metric([status.name], status.info.disk_bytes)
    yield from (host, disk)


def _disk_trouble(engines: Sequence[Engine]) -> Metric:
    """Whether; why stands in the log and in `status`, and would be another label each time."""
    trouble = GaugeMetricFamily("luce_engine_disk_trouble", "Whether nothing can be written to disk", labels=["engine"])
    for engine, engine_metrics in engines:
        if (said := engine_metrics.get("disk_trouble")) is not None:
            trouble.add_metric([engine], said != "none")
    return trouble


def _time_families(engines: Sequence[Engine]) -> Iterator[Metric]:
    """What engines spend their time on. Those too old to say have no values."""
    steps = CounterMetricFamily("luce_engine_steps", "Steps of the engine", labels=["engine"])
    parts = CounterMetricFamily(
        "luce_engine_step_seconds", "Time of the thread that computes, by what it did", labels=["engine", "part"]
    )
    seconds = CounterMetricFamily(
        "luce_engine_copies_seconds", "Time of the threads that copy beside it", labels=["engine", "direction"]
    )
    n_bytes = CounterMetricFamily("luce_engine_copies_bytes", "Bytes that they copied", labels=["engine", "direction"])
    for engine, engine_metrics in engines:
        for part, value in step_seconds(engine_metrics).items():
            parts.add_metric([engine, part], value)
        if isinstance(n_steps := engine_metrics.get("steps"), int):
            steps.add_metric([engine], n_steps)
        for direction in ("in", "out"):
            for family, unit in ((seconds, "s"), (n_bytes, "bytes")):
                if isinstance(n := engine_metrics.get(f"copies_{direction}_{unit}"), int | float):
                    family.add_metric([engine, direction], n)
    yield from (steps, parts, seconds, n_bytes)


def _page_families(engines: Sequence[Engine]) -> Iterator[Metric]:
    """Names without numbers for engines whose texts have to fit the pool."""
    engines = [(engine, engine_metrics) for engine, engine_metrics in engines if "pages_out" in engine_metrics]
    for kind, name, text, key in (
        (GaugeMetricFamily, "luce_engine_pages_out", "Pages of running texts that are out of the pool", "pages_out"),
        (CounterMetricFamily, "luce_engine_pages_moved_out", "Pages that left it for lack of room", "pages_moved_out"),
        (CounterMetricFamily, "luce_engine_pages_moved_in", "Pages that came back to it", "pages_moved_in"),
        (CounterMetricFamily, "luce_engine_page_bytes_in", "Bytes of pages copied into it", "page_bytes_in"),
        (CounterMetricFamily, "luce_engine_page_bytes_out", "Bytes of pages copied out of it", "page_bytes_out"),
        (CounterMetricFamily, "luce_engine_page_choices", "Times that pages were chosen by scores", "page_choices"),
        (CounterMetricFamily, "luce_engine_page_choices_cut", "Of these, cut short", "page_choices_cut"),
        (CounterMetricFamily, "luce_engine_pages_wanted", "Pages that were chosen", "pages_wanted"),
        (CounterMetricFamily, "luce_engine_pages_found", "Chosen pages that were in the pool", "pages_found"),
        (GaugeMetricFamily, "luce_engine_page_keys_bytes", "Memory of what pages are scored by", "page_keys_bytes"),
        (GaugeMetricFamily, "luce_engine_scorer_bytes", "Memory of the model that scores them", "scorer_bytes"),
        (CounterMetricFamily, "luce_engine_page_stall_seconds", "Time that computing waited for pages", "page_stall_s"),
    ):
        yield _family(kind, name, text, key, engines)
    lanes = GaugeMetricFamily(
        "luce_engine_lane_pages", "Pages of a running text by where they lie", labels=["engine", "lane", "tier"]
    )
    for engine, engine_metrics in engines:
        for lane, counts in lane_pages(engine_metrics).items():
            for tier, count in zip(LANE_TIERS, counts, strict=True):
                lanes.add_metric([engine, str(lane), tier], count)
    yield lanes
