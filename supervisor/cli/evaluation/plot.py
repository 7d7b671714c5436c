"""A picture of what `luce eval` found. Measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from luce.supervisor.cli.pictures import save_figure
from luce.supervisor.evaluating.results import Results, ScoreRow

_N_COLUMNS = 3  # of tasks by length


def save_plot(pyplot: Any, results: Results, path: Path) -> None:
    """Shares as bars; by length as lines where there are several. A side has one colour everywhere. Raises Failure."""
    rows = results.score_rows()
    metrics = list(dict.fromkeys(row.metric for row in rows))
    by_length = [metric for metric in metrics if any(row.metric == metric and row.length is not None for row in rows)]
    n_columns = min(len(by_length), _N_COLUMNS)
    n_lines = -(-len(by_length) // _N_COLUMNS)
    height = max(4.0, 0.25 * len(metrics) * len(results.sides), 3.0 * n_lines)
    figure = pyplot.figure(figsize=(6 + 3.5 * n_columns, height), layout="constrained")
    if by_length:
        left, right = figure.subfigures(1, 2, width_ratios=[6, 3.5 * n_columns])
        for axis, metric in zip(right.subplots(n_lines, n_columns, squeeze=False).flat, by_length, strict=False):
            _draw_lengths(axis, [row for row in rows if row.metric == metric and row.length is not None], results)
    else:
        left = figure
    _draw_bars(left.subplots(), metrics, [row for row in rows if row.length is None], results)
    if len(results.sides) > 1:
        left.legend(loc="outside lower center", ncols=len(results.sides))
    save_figure(pyplot, figure, path)


def _draw_bars(axis: Any, metrics: Sequence[str], rows: Sequence[ScoreRow], results: Results) -> None:
    width = 0.8 / len(results.sides)
    for number, side in enumerate(results.sides):
        own = [row for row in rows if row.side == side]
        places = [metrics.index(row.metric) + number * width for row in own]
        axis.barh(places, [100 * row.score.value for row in own], width, xerr=_reach(own), capsize=3,
                  color=f"C{number}", alpha=0.7, label=side)  # fmt: skip
    axis.set(title="Right, % (95 of 100)", xlim=(0, 100))
    axis.set_yticks([at + 0.4 - width / 2 for at in range(len(metrics))], metrics)
    axis.invert_yaxis()
    axis.grid(visible=True, axis="x", alpha=0.3)


def _draw_lengths(axis: Any, rows: Sequence[ScoreRow], results: Results) -> None:
    for number, side in enumerate(results.sides):
        own = [row for row in rows if row.side == side]
        axis.errorbar([row.length for row in own], [100 * row.score.value for row in own], _reach(own),
                      marker="o", capsize=3, color=f"C{number}")  # fmt: skip
    ticks = sorted({row.length for row in rows if row.length is not None})
    axis.set(title=rows[0].metric, xlabel="prompt, tokens", xscale="log", ylim=(-5, 105))
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.set_xticks([], minor=True)
    axis.grid(visible=True, alpha=0.3)


def _reach(rows: Sequence[ScoreRow]) -> list[list[float]]:
    """How far the interval reaches below and above."""
    return [
        [100 * (row.score.value - row.score.low) for row in rows],
        [100 * (row.score.high - row.score.value) for row in rows],
    ]
