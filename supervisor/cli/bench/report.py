"""What `luce bench` found, as tables and as JSON: medians, and ratios pair by pair. Pure but for the console it prints
to; must not know how anything is measured.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from statistics import median
from typing import TYPE_CHECKING, Any

from luce.supervisor.cli.bench.measure import DepthSample, SpeculationSample

if TYPE_CHECKING:
    from rich.console import Console


@dataclass
class Results:
    """Everything of one run. The first side is the one that is asked about."""

    sides: dict[str, str]  # name -> address, or what it is
    settings: dict[str, Any]
    depths: list[DepthSample] = field(default_factory=list)
    speculation: list[SpeculationSample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DepthRow:
    """Medians of one side at one depth."""

    side: str
    depth: int
    n_prompt: int
    cold_first_token_s: float
    read_per_s: float
    warm_first_token_s: float
    cached_share: float
    decoded_per_s: float | None


@dataclass(frozen=True, slots=True)
class RatioRow:
    """How many times better the first side is than the second: median, least and most of the pairs."""

    depth: int
    cold_first_token: tuple[float, float, float]
    warm_first_token: tuple[float, float, float]
    decoding: tuple[float, float, float] | None


@dataclass(frozen=True, slots=True)
class SpeculationRow:
    prompt: str
    drafted_per_s: float
    plain_per_s: float
    ratio: tuple[float, float, float]
    is_same_text: bool


def _spread(values: Iterable[float]) -> tuple[float, float, float]:
    found = sorted(values)
    return median(found), found[0], found[-1]


def _rates(samples: Iterable[DepthSample]) -> list[float]:
    """Of each sample that has one: cold and warm answers decode at the same depth."""
    both = (rate for sample in samples for rate in (sample.cold.decoded_per_s, sample.warm.decoded_per_s))
    return [rate for rate in both if rate is not None]


def depth_rows(samples: Sequence[DepthSample]) -> list[DepthRow]:
    rows = []
    for depth, side in dict.fromkeys((sample.depth, sample.side) for sample in samples):
        here = [sample for sample in samples if (sample.depth, sample.side) == (depth, side)]
        rates = _rates(here)
        rows.append(
            DepthRow(
                side=side,
                depth=depth,
                n_prompt=int(median(sample.cold.n_prompt for sample in here)),
                cold_first_token_s=median(sample.cold.first_token_s for sample in here),
                read_per_s=median(sample.cold.read_per_s for sample in here),
                warm_first_token_s=median(sample.warm.first_token_s for sample in here),
                cached_share=median(sample.warm.n_cached / max(sample.warm.n_prompt, 1) for sample in here),
                decoded_per_s=median(rates) if rates else None,
            )
        )
    order = list(dict.fromkeys(row.side for row in rows))
    return sorted(rows, key=lambda row: (row.depth, order.index(row.side)))


def ratio_rows(samples: Sequence[DepthSample], first: str, second: str) -> list[RatioRow]:
    rows = []
    for depth in dict.fromkeys(sample.depth for sample in samples):
        by_turn: dict[int, dict[str, DepthSample]] = {}
        for sample in samples:
            if sample.depth == depth:
                by_turn.setdefault(sample.turn, {})[sample.side] = sample
        pairs = [(both[first], both[second]) for both in by_turn.values() if len(both) > 1]
        if not pairs:
            continue
        decoding = [median(_rates([a])) / median(_rates([b])) for a, b in pairs if _rates([a]) and _rates([b])]
        rows.append(
            RatioRow(
                depth,
                _spread(b.cold.first_token_s / a.cold.first_token_s for a, b in pairs),
                _spread(b.warm.first_token_s / a.warm.first_token_s for a, b in pairs),
                _spread(decoding) if decoding else None,
            )
        )
    return rows


def speculation_rows(samples: Sequence[SpeculationSample]) -> list[SpeculationRow]:
    rows = []
    for prompt in dict.fromkeys(sample.prompt for sample in samples):
        here = [sample for sample in samples if sample.prompt == prompt]
        rates = [(sample.drafted.decoded_per_s, sample.plain.decoded_per_s) for sample in here]
        whole = [(drafted, plain) for drafted, plain in rates if drafted is not None and plain is not None]
        if whole:
            drafted, plain = (median(column) for column in zip(*whole, strict=True))
            is_same = all(sample.is_same_text for sample in here)
            rows.append(SpeculationRow(prompt, drafted, plain, _spread(a / b for a, b in whole), is_same))
    return rows


def to_json(results: Results) -> dict[str, Any]:
    """Settings, medians and every sample. Times in seconds, rates in tokens a second."""
    first, *others = results.sides
    return {
        "version": metadata.version("luce-daemon"),
        "machine": {"system": platform.platform(), "processors": os.cpu_count()},
        "settings": results.settings,
        "sides": results.sides,
        "depths": [asdict(row) for row in depth_rows(results.depths)],
        "ratios": [asdict(row) for other in others for row in ratio_rows(results.depths, first, other)],
        "speculation": [asdict(row) for row in speculation_rows(results.speculation)],
        "notes": results.notes,
        "samples": {
            "depths": [asdict(sample) for sample in results.depths],
            "speculation": [asdict(sample) for sample in results.speculation],
        },
    }


def print_results(console: Console, results: Results) -> None:
    from rich.table import Table

    first, *others = results.sides
    title = ", ".join(f"{name}: {what}" for name, what in results.sides.items())
    rows = [
        [f"{row.depth:,}", *([row.side] if others else []), f"{row.n_prompt:,}", _ms(row.cold_first_token_s),
         f"{row.read_per_s:,.0f}", _ms(row.warm_first_token_s), f"{row.cached_share:.0%}",
         "-" if row.decoded_per_s is None else f"{row.decoded_per_s:,.1f}"]
        for row in depth_rows(results.depths)
    ]  # fmt: skip
    names = ["depth", *(["server"] if others else []), "prompt", "cold", "read/s", "warm", "cached", "decoded/s"]
    console.print(_table(Table(title=title), names, rows))
    for other in others:
        ratios = [
            [f"{row.depth:,}", *map(_ratio, (row.cold_first_token, row.warm_first_token, row.decoding))]
            for row in ratio_rows(results.depths, first, other)
        ]
        title = f"{first} against {other}: times faster, median (least .. most)"
        console.print(_table(Table(title=title), ["depth", "cold", "warm", "decoding"], ratios))
    if results.speculation:
        drafts = [
            [row.prompt, f"{row.drafted_per_s:,.1f}", f"{row.plain_per_s:,.1f}", _ratio(row.ratio),
             "same" if row.is_same_text else "differs"]
            for row in speculation_rows(results.speculation)
        ]  # fmt: skip
        title = "speculation: tokens a second with drafts and without"
        console.print(_table(Table(title=title), ["prompt", "drafts", "plain", "times faster", "text"], drafts))
    for note in results.notes:
        console.print(note, markup=False)


def _table(table: Any, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    table.title_justify = "left"
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if seconds < 10 else f"{seconds:,.1f} s"


def _ratio(spread: tuple[float, float, float] | None) -> str:
    return "-" if spread is None else f"{spread[0]:.2f} ({spread[1]:.2f} .. {spread[2]:.2f})"
