"""What a model still knows of a real text in a pool that holds a part of it (--kv-offload): perplexity of what the text
goes on with, written as an answer is, and questions about the text; against the whole text in the cells. Counts, no
times. It must not know how pages are chosen.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from luce.supervisor.text import TextModel
from scripts.bench.real.readings import Reading, force, is_right, reading
from scripts.bench.real.rows import Row, Setup
from scripts.bench.residency.sides import LRU, QUERY, EngineSettings, whole_pages
from tests.daemon_driver import DaemonDriver

MOST_PERPLEXITY = 1.03  # of the whole's, at a quarter of the text
LEAST_FOUND = 0.95
QUARTER = 4
UBATCH = 64  # what a slice takes of a small pool matters
TRAINED = {"smollm": 8192}  # tokens; the others: 32,768


@dataclass(frozen=True)
class Volume:
    lengths: tuple[int, ...]
    shares: tuple[int, ...]
    """The pool is one of so many parts of the text."""
    n_texts: int
    n_questions: int
    """Of each kind, about each text."""
    n_going_on: int
    calibrates: bool
    """Whether the layer that `luce calibrate` names is measured, too."""


def volume_of(setup: Setup) -> Volume:
    if setup.quick:
        return Volume((4096,), (4,), 1, 4, 64, calibrates=False)
    if not setup.gpu_layers:
        return Volume((4096,), (4, 8), 2, 6, 128, calibrates=True)
    lengths = tuple(n for n in (4096, 8192, 32256) if n + 512 <= TRAINED.get(setup.name, 32768))
    return Volume(lengths, (4, 8), 4, 6, 256, calibrates=True)


@dataclass
class Found:
    """What one side knows of all texts of a length."""

    logprobs: list[float] = field(default_factory=list)
    are_right: list[bool] = field(default_factory=list)


def measure(setup: Setup) -> list[Row]:
    return measure_volume(setup, volume_of(setup))


def measure_volume(setup: Setup, volume: Volume) -> list[Row]:
    rows: list[Row] = []
    layer = calibrated_layer(setup) if volume.calibrates else None
    with closing(TextModel(setup.model)) as model:
        for length in volume.lengths:
            readings = [
                reading(model, length, volume.n_questions, volume.n_going_on, seed) for seed in range(volume.n_texts)
            ]
            rows += _rows_of(setup, volume, model, readings, layer)
    return rows


def calibrated_layer(setup: Setup) -> int | None:
    """What `luce calibrate` names; None: no layer finds anything."""
    command = [
        sys.executable, "-c", "from luce.supervisor.cli.app import main; main()", "calibrate", "--model",
        str(setup.model), "--texts", "1", "--json", "--threads", str(setup.threads), "--gpu-layers",
        str(setup.gpu_layers),
    ]  # fmt: skip
    environment = os.environ | {"LUCE_DAEMON_BINARY": str(setup.luced)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    layer: int | None = json.loads(done.stdout)["layer"]
    return layer


def _rows_of(
    setup: Setup, volume: Volume, model: TextModel, readings: Sequence[Reading], layer: int | None
) -> Iterator[Row]:
    n_text = max(len(text.ids) for text in readings)
    n_ctx = whole_pages(n_text + volume.n_going_on + 512)
    settings = EngineSettings(
        setup.luced, setup.model, UBATCH, setup.threads, setup.gpu_layers, setup.cache_type
    )  # fmt: skip
    with settings.whole(n_ctx) as daemon:
        whole = _ask(daemon, model, readings)
    n_found = sum(whole.are_right)
    yield Row(f"questions, the whole of {n_text:,} tokens", n_found, unit=f"of {len(whole.are_right)}")
    for share in volume.shares:
        n_pool = whole_pages(n_text / share)
        has_aim = share == QUARTER
        with settings.bounded(n_ctx, n_pool, QUERY) as daemon:
            usual = int(dict(daemon.ready.fields)["kvflash_layer"])
            yield from _compared(f"1/{share} of {n_text:,}", whole, _ask(daemon, model, readings), has_aim)
        with settings.bounded(n_ctx, n_pool, LRU) as daemon:
            yield from _compared(f"1/{share} of {n_text:,}, lru", whole, _ask(daemon, model, readings), False)
        if layer is not None and layer != usual and has_aim:
            calibrated = EngineSettings(
                setup.luced, setup.model, UBATCH, setup.threads, setup.gpu_layers, setup.cache_type,
                more=("--kv-offload-layer", str(layer)),
            )  # fmt: skip
            with calibrated.bounded(n_ctx, n_pool, QUERY) as daemon:
                what = f"1/{share} of {n_text:,}, layer {layer} in place of {usual}"
                yield from _compared(what, whole, _ask(daemon, model, readings), False)


def _ask(daemon: DaemonDriver, model: TextModel, readings: Sequence[Reading]) -> Found:
    found = Found()
    for text in readings:
        found.logprobs += [step[0][1] for step in force(daemon, text.ids, text.going_on)]
        found.are_right += [is_right(daemon, model, question, len(text.ids)) for question in text.questions]
    return found


def _compared(what: str, whole: Found, side: Found, has_aim: bool) -> Iterator[Row]:
    """Of the questions only those that the whole text answers."""
    lost = [a - b for a, b in zip(whole.logprobs, side.logprobs, strict=True)]
    ratio = math.exp(statistics.fmean(lost))
    error = statistics.stdev(lost) / math.sqrt(len(lost))
    yield Row(
        f"perplexity of the whole's, {what}", ratio, aim=f"<= {MOST_PERPLEXITY}" if has_aim else "",
        is_met=ratio <= MOST_PERPLEXITY if has_aim else None,
        note=f"standard error {error:.3f}, {len(lost)} tokens",
    )  # fmt: skip
    both = [there for here, there in zip(whole.are_right, side.are_right, strict=True) if here]
    if not both:
        return
    share = sum(both) / len(both)
    yield Row(
        f"questions of the whole's, {what}", share, aim=f">= {LEAST_FOUND}" if has_aim else "",
        is_met=share >= LEAST_FOUND if has_aim else None, note=f"{sum(both)} of {len(both)}",
    )  # fmt: skip
