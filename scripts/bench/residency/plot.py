"""The residency benchmark's picture. It must not know how a figure came about."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.bench.harness import open_pyplot
from scripts.bench.residency.report import AIM_FLAT, DepthRow, FlatnessRow, RecallRow
from scripts.bench.residency.sides import DRAFT, FULL, LRU, QUERY

COLOURS = {FULL: "#8c8c8c", QUERY: "#1f77b4", DRAFT: "#9467bd", LRU: "#d62728"}
FONT = 8


def save_plot(
    recall: Sequence[RecallRow], depths: Sequence[DepthRow], flatness: Sequence[FlatnessRow], path: Path
) -> None:
    """A PNG: recall by kind and by depth at each residency, and decoding by position."""
    pyplot = open_pyplot()
    if pyplot is None:
        return
    percents = list(dict.fromkeys(row.percent for row in recall))
    n_rows, n_columns = 2 if percents else 1, max(1, len(percents) + bool(flatness))
    figure, axes = pyplot.subplots(n_rows, n_columns, figsize=(4.2 * n_columns, 3.2 * n_rows), squeeze=False)
    for (top, bottom), percent in zip(axes.T if percents else (), percents, strict=False):
        _plot_recall(top, [row for row in recall if row.percent == percent])
        _plot_depths(bottom, [row for row in depths if row.percent == percent])
    if flatness:
        _plot_flatness(axes[0][-1], flatness)
        if percents:
            axes[1][-1].set_axis_off()
    if percents:
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper center", ncols=len(labels), fontsize=FONT, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.96 if percents else 1))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _plot_recall(axis: Any, rows: Sequence[RecallRow]) -> None:
    sides = rows[0].sides
    width = 0.8 / len(sides)
    for i, side in enumerate(sides):
        places = [place + (i - (len(sides) - 1) / 2) * width for place in range(len(rows))]
        axis.bar(places, [row.recall(side) * 100 for row in rows], width=width * 0.93, label=side,
                 color=COLOURS[side])  # fmt: skip
    axis.set_xticks(range(len(rows)), [row.kind for row in rows])
    axis.set_title(f"residency {rows[0].percent} %: {rows[0].n_pool} of {rows[0].n_tokens} tokens", fontsize=FONT)
    axis.set_ylabel("needles found, %", fontsize=FONT)
    axis.set_ylim(0, 105)


def _plot_depths(axis: Any, rows: Sequence[DepthRow]) -> None:
    for side, colour in COLOURS.items():
        if rows and side in rows[0].n_found:
            shares = [row.n_found[side] / row.n * 100 for row in rows]
            axis.plot([row.depth * 100 for row in rows], shares, marker="o", color=colour)
    axis.set_xlabel("needle's depth in the text, %", fontsize=FONT)
    axis.set_ylabel("needles found, %", fontsize=FONT)
    axis.set_xlim(0, 100)
    axis.set_ylim(-3, 105)


def _plot_flatness(axis: Any, rows: Sequence[FlatnessRow]) -> None:
    positions = [row.position for row in rows]
    axis.plot(positions, [statistics.median(row.to_home) for row in rows], marker="o", label="bounded / home")
    if all(row.to_whole for row in rows):
        axis.plot(positions, [statistics.median(row.to_whole) for row in rows], marker="o", label="bounded / whole")
    axis.axhline(AIM_FLAT, linestyle=":", color="grey", linewidth=1, label="aim")
    axis.set_xscale("log", base=2)
    axis.set_title("time a decoded token", fontsize=FONT)
    axis.set_xlabel("position", fontsize=FONT)
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=FONT)
