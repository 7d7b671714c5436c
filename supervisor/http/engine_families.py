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
    (GaugeMetricFamily, "luce_engine_lanes_busy", "Lanes with a running request", "lanes_busy"),
    (GaugeMetricFamily, "luce_engine_queued", "Requests that wait in the engine", "queued"),
    (GaugeMetricFamily, "luce_engine_suspended", "Running texts that wait for room in the pool", "suspended"),
    (CounterMetricFamily, "luce_engine_suspensions", "Sequences preempted for lack of room in the pool", "suspensions"),
    (CounterMetricFamily, "luce_engine_computed_prompt_tokens", "Prompt tokens that were computed", "tokens_in"),
    (
        CounterMetricFamily,
        "luce_engine_reused_prompt_tokens",
        "Prompt tokens that came from the cache",
        "tokens_reused",
    ),
    (CounterMetricFamily, "luce_engine_generated_tokens", "Generated tokens", "tokens_out"),
    (
        GaugeMetricFamily,
        "luce_engine_pool_tokens",
        "Tokens that fit the pool; fewer than at the start after the device ran out of memory",
        "pool",
    ),
    (GaugeMetricFamily, "luce_engine_pool_used_tokens", "Tokens of running texts in the pool", "cells_used"),
    (GaugeMetricFamily, "luce_engine_pool_pages", "Cached pages in the pool", "pages_resident"),
    (
        GaugeMetricFamily,
        "luce_engine_pool_aside_pages",
        "Cached pages set aside in the pool's high cells",
        "pages_aside",
    ),
    (
        CounterMetricFamily,
        "luce_engine_pages_evicted",
        "Pages that left the pool; most have a copy in the host",
        "pages_evicted",
    ),
    (
        CounterMetricFamily,
        "luce_engine_pages_dropped",
        "Pages that left pool and host: their text must be read again, or comes from the disk",
        "pages_dropped",
    ),
    (GaugeMetricFamily, "luce_engine_host_pages", "Pages in host memory, copies of pool pages included", "pages_host"),
    (GaugeMetricFamily, "luce_engine_host_checkpoints", "Checkpoints in host memory", "tails_host"),
    (GaugeMetricFamily, "luce_engine_host_bytes", "Host memory of pages and checkpoints", "host_bytes"),
    (GaugeMetricFamily, "luce_engine_pinned_bytes", "Memory held by slots, in host and pool", "pinned_bytes"),
    (GaugeMetricFamily, "luce_engine_disk_files", "Files of pages and checkpoints on disk", "disk_files"),
    (GaugeMetricFamily, "luce_engine_disk_bytes", "Size of the files on disk", "disk_bytes"),
    (CounterMetricFamily, "luce_engine_disk_written_files", "Files written to the disk cache", "disk_written"),
    (CounterMetricFamily, "luce_engine_disk_read_files", "Files read from the disk cache", "disk_read"),
    (
        CounterMetricFamily,
        "luce_engine_disk_adopted_files",
        "Files added to the disk cache by other programs",
        "disk_adopted",
    ),
    (
        CounterMetricFamily,
        "luce_engine_disk_corrupt_files",
        "Damaged files of the disk cache, not used",
        "disk_corrupt",
    ),
    (
        GaugeMetricFamily,
        "luce_engine_backlog_bytes",
        "Tokens and replies not yet read by the supervisor",
        "backlog_bytes",
    ),
)
"""What every engine says, whatever its pool, by the word that PROTOCOL.md has for it."""


_EXPERTS: tuple[tuple[_Kind, str, str, str], ...] = (
    (GaugeMetricFamily, "luce_engine_experts", "Experts of all layers", "experts"),
    (GaugeMetricFamily, "luce_engine_experts_resident", "Experts on the GPU", "experts_resident"),
    (
        GaugeMetricFamily,
        "luce_engine_experts_least",
        "Minimum number of experts on the GPU, when the pool needs all its memory",
        "experts_least",
    ),
    (
        GaugeMetricFamily,
        "luce_engine_experts_most",
        "Maximum number of experts on the GPU, when the pool needs little",
        "experts_most",
    ),
    (GaugeMetricFamily, "luce_engine_experts_device_bytes", "GPU memory of experts", "experts_device_bytes"),
    (GaugeMetricFamily, "luce_engine_experts_host_bytes", "Host memory of experts", "experts_host_bytes"),
    (
        CounterMetricFamily,
        "luce_engine_expert_hits",
        "Expert reads served by the GPU, per layer and token",
        "expert_hits",
    ),
    (CounterMetricFamily, "luce_engine_expert_misses", "Expert reads served from host memory", "expert_misses"),
    (
        CounterMetricFamily,
        "luce_engine_expert_exchanges",
        "Experts moved to the GPU, each in exchange for another",
        "expert_exchanges",
    ),
    (
        CounterMetricFamily,
        "luce_engine_expert_moved_bytes",
        "Bytes copied for exchanges, both ways",
        "expert_moved_bytes",
    ),
    (
        CounterMetricFamily,
        "luce_engine_expert_wait_seconds",
        "Time that computation waited for exchanges",
        "expert_wait_s",
    ),
    (
        GaugeMetricFamily,
        "luce_engine_cache_cells",
        "Cells of the pool that have memory, if experts share it",
        "cache_cells",
    ),
    (
        GaugeMetricFamily,
        "luce_engine_cache_bytes",
        "GPU memory of the pool's cells, if experts share it",
        "cache_bytes",
    ),
)
"""Only of a mixture whose experts lie in two memories; the last ones where they share one with the pool."""


_READING: tuple[tuple[_Kind, str, str, str], ...] = (
    (CounterMetricFamily, "luce_engine_prefill_sparse", "Prompts read in parts (--prefill)", "prefill_sparse"),
    (
        CounterMetricFamily,
        "luce_engine_prefill_sparse_tokens",
        "Tokens of prompts read in parts",
        "prefill_sparse_tokens",
    ),
    (
        CounterMetricFamily,
        "luce_engine_prefill_left_out_tokens",
        "Tokens left out of prompts read in parts",
        "prefill_left_out",
    ),
    (
        GaugeMetricFamily,
        "luce_engine_prefill_repairs",
        "Texts read in parts that are still to be read in full (--prefill-repair)",
        "prefill_repairs",
    ),
    (
        CounterMetricFamily,
        "luce_engine_prefill_repaired_tokens",
        "Tokens computed to read such texts in full",
        "prefill_repaired",
    ),
    (
        CounterMetricFamily,
        "luce_engine_prefill_scored_tokens",
        "Tokens read by the scorer, in its own vocabulary, /compress included",
        "prefill_scored",
    ),
    (
        GaugeMetricFamily,
        "luce_engine_prefill_scorer_bytes",
        "Weights and cells of the scorer (--prefill-scorer); 0 without one",
        "prefill_scorer_bytes",
    ),
    (GaugeMetricFamily, "luce_engine_prefill_keys_bytes", "Host memory of the scorer's keys", "prefill_keys_bytes"),
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
    host = GaugeMetricFamily(
        "luce_engine_host_limit_bytes",
        "Limit of host memory for pages and checkpoints (--host-cache)",
        labels=["engine"],
    )
    disk = GaugeMetricFamily(
        "luce_engine_disk_limit_bytes",
        "Limit of the disk cache's size (--disk-budget); 0 without one",
        labels=["engine"],
    )
    for status in engines:
        if status.info is not None:
            host.add_metric([status.name], status.info.host_bytes)
            disk.add_metric([status.name], status.info.disk_bytes)
    yield from (host, disk)


def _disk_trouble(engines: Sequence[Engine]) -> Metric:
    """Whether; why stands in the log and in `status`, and would be another label each time."""
    trouble = GaugeMetricFamily(
        "luce_engine_disk_trouble", "1 while the disk cache cannot be written; the log says why", labels=["engine"]
    )
    for engine, engine_metrics in engines:
        if (said := engine_metrics.get("disk_trouble")) is not None:
            trouble.add_metric([engine], said != "none")
    return trouble


def _time_families(engines: Sequence[Engine]) -> Iterator[Metric]:
    """What engines spend their time on. Those too old to say have no values."""
    steps = CounterMetricFamily("luce_engine_steps", "Steps of the engine", labels=["engine"])
    parts = CounterMetricFamily(
        "luce_engine_step_seconds",
        "Time of the computing thread by part of a step; the parts add up to all its time, idle included",
        labels=["engine", "part"],
    )
    seconds = CounterMetricFamily(
        "luce_engine_copies_seconds",
        "Time in which the copy threads were busy: from the device (out) or to it (in)",
        labels=["engine", "direction"],
    )
    n_bytes = CounterMetricFamily(
        "luce_engine_copies_bytes", "Bytes copied by the copy threads", labels=["engine", "direction"]
    )
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
        (
            GaugeMetricFamily,
            "luce_engine_pages_out",
            "Pages of running texts in the host, outside the pool",
            "pages_out",
        ),
        (
            CounterMetricFamily,
            "luce_engine_pages_moved_out",
            "Pages of running texts that left the pool",
            "pages_moved_out",
        ),
        (
            CounterMetricFamily,
            "luce_engine_pages_moved_in",
            "Pages of running texts that returned to the pool",
            "pages_moved_in",
        ),
        (
            CounterMetricFamily,
            "luce_engine_page_bytes_in",
            "Bytes of pages copied into the pool for running texts",
            "page_bytes_in",
        ),
        (
            CounterMetricFamily,
            "luce_engine_page_bytes_out",
            "Bytes of pages copied out of the pool; most leaving pages already have a copy in the host",
            "page_bytes_out",
        ),
        (CounterMetricFamily, "luce_engine_page_choices", "Page selections for running answers", "page_choices"),
        (
            CounterMetricFamily,
            "luce_engine_page_choices_cut",
            "Page selections that could not be loaded completely",
            "page_choices_cut",
        ),
        (CounterMetricFamily, "luce_engine_pages_wanted", "Pages selected", "pages_wanted"),
        (CounterMetricFamily, "luce_engine_pages_found", "Selected pages that were already in the pool", "pages_found"),
        (
            GaugeMetricFamily,
            "luce_engine_page_keys_bytes",
            "Host memory of the keys that score pages",
            "page_keys_bytes",
        ),
        (
            GaugeMetricFamily,
            "luce_engine_scorer_bytes",
            "Weights and cells of the scorer (--kv-offload-scorer); 0 without one",
            "scorer_bytes",
        ),
        (
            CounterMetricFamily,
            "luce_engine_page_stall_seconds",
            "Time that computation waited for selecting and moving pages",
            "page_stall_s",
        ),
    ):
        yield _family(kind, name, text, key, engines)
    lanes = GaugeMetricFamily(
        "luce_engine_lane_pages",
        "Pages of a lane's text: in the pool (resident), in the host (host), and those with a copy on disk (disk)",
        labels=["engine", "lane", "tier"],
    )
    for engine, engine_metrics in engines:
        for lane, counts in lane_pages(engine_metrics).items():
            for tier, count in zip(LANE_TIERS, counts, strict=True):
                lanes.add_metric([engine, str(lane), tier], count)
    yield lanes
