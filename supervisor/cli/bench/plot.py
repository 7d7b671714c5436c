"""A picture of what `luce bench` found. Measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any

from luce.supervisor.cli.bench.report import Results, SpeculationRow, depth_rows, speculation_rows
from luce.supervisor.cli.pictures import save_figure


def save_plot(pyplot: Any, results: Results, path: Path) -> None:
    """A side has one colour everywhere. Raises Failure."""
    rows, drafts = depth_rows(results.depths), speculation_rows(results.speculation)
    n_columns = 4 if drafts else 3
    figure, axes = pyplot.subplots(1, n_columns, figsize=(4.5 * n_columns, 4), layout="constrained")
    for number, side in enumerate(results.sides):
        own, color = [row for row in rows if row.side == side], f"C{number}"
        depths = [row.n_prompt for row in own]
        rates = [nan if row.decoded_per_s is None else row.decoded_per_s for row in own]
        axes[0].plot(depths, [row.read_per_s for row in own], marker="o", color=color, label=side)
        axes[1].plot(depths, rates, marker="o", color=color, label=side)
        for name, style, times in (
            ("cold", "-", [row.cold_first_token_s for row in own]),
            ("warm", "--", [row.warm_first_token_s for row in own]),
        ):
            label = name if len(results.sides) == 1 else f"{side}, {name}"
            axes[2].plot(depths, times, style, marker="o", color=color, label=label)
    ticks = sorted({row.depth for row in rows})
    titles = ("Reading, tokens a second", "Decoding, tokens a second", "First token, seconds")
    for axis, title in zip(axes, titles, strict=False):
        axis.set(title=title, xlabel="prompt, tokens", xscale="log")
        axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axis.set_xticks([], minor=True)
        axis.grid(visible=True, alpha=0.3)
    for axis in axes[:2]:
        axis.set_ylim(bottom=0)
        if len(results.sides) > 1:
            axis.legend()
    axes[2].set_yscale("log")
    axes[2].yaxis.set_major_formatter("{x:g}")
    axes[2].legend()
    if drafts:
        _draw_drafts(axes[3], drafts)
    save_figure(pyplot, figure, path)


def _draw_drafts(axis: Any, rows: Sequence[SpeculationRow]) -> None:
    """Medians as bars, with the range of the pairs."""
    medians = [row.ratio[0] for row in rows]
    ranges = [[row.ratio[0] - row.ratio[1] for row in rows], [row.ratio[2] - row.ratio[0] for row in rows]]
    bars = axis.bar([row.prompt for row in rows], medians, yerr=ranges, capsize=4, alpha=0.7)
    axis.bar_label(bars, [f"{median:.2f}" for median in medians], label_type="center")
    axis.axhline(1, color="grey")
    axis.set(title="Decoding with drafts / without", ylim=(0, None))
