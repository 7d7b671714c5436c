"""The speculation benchmark's plot: tokens a second by the number of drafted tokens a step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.bench.harness import open_pyplot
from scripts.bench.speculation.report import GATE, PLAIN, SERVER, Group


def width_of(side: str) -> int | None:
    """The fixed number of drafted tokens of "fixed 4", "fixed 4 ngram", "server 4"."""
    match = re.search(r" (\d+)", side)
    return int(match[1]) if match else None


def save_plot(groups: Sequence[Group], path: Path) -> None:
    """A PNG: tokens a second by set and width, a row of panels for each group."""
    pyplot = open_pyplot()
    if pyplot is None:
        return
    n_columns = max(len(group.set_names) for group in groups)
    size = (3.4 * n_columns, 3.2 * len(groups))
    figure, axes = pyplot.subplots(len(groups), n_columns, figsize=size, squeeze=False)
    for row, group in zip(axes, groups, strict=True):
        for axis in row[len(group.set_names) :]:
            axis.set_axis_off()
        for axis, name in zip(row, group.set_names, strict=False):
            _plot_set(axis, group, name)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.3 / size[1]))
    figure.legend(handles, labels, loc="upper center", ncols=6, fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _plot_set(axis: Any, group: Group, name: str) -> None:
    lines: dict[str, list[tuple[int, float]]] = {}
    for side in group.side_names:
        if (width := width_of(side)) is not None:
            label = re.sub(r" \d+", "", side).replace(SERVER, "llama-server")
            lines.setdefault(label, []).append((width, group.rate((name,), side)))
    for label, points in lines.items():
        widths, rates = zip(*sorted(points), strict=True)
        axis.plot(widths, rates, marker="o", markersize=3, label=label)
    styles = {PLAIN: ("plain", "--", "grey"), GATE: ("gate", "-", "black"), SERVER: ("llama-server plain", ":", "grey")}
    for side, (label, style, colour) in styles.items():
        if side in group.side_names:
            axis.axhline(group.rate((name,), side), linestyle=style, color=colour, linewidth=1, label=label)
    axis.set_title(f"{name}, {group.n_lanes} lane{'s' * (group.n_lanes > 1)}, context {group.n_context}", fontsize=8)
    axis.set_xlabel("drafted tokens a step", fontsize=8)
    axis.set_ylabel("tokens a second", fontsize=8)
    axis.set_ylim(bottom=0)
