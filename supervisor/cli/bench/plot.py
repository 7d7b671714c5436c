"""A picture of what `luce bench` found. Knows matplotlib, which the extra `bench` installs; measures nothing."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from luce.supervisor.cli.bench.report import Results, depth_rows, speculation_rows
from luce.supervisor.cli.entry import EXIT_BAD_ARGS, EXIT_REFUSED, Failure


def open_pyplot() -> Any:
    """matplotlib.pyplot, which opens no window. Raises Failure."""
    try:
        importlib.import_module("matplotlib").use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError:
        raise Failure("--plot needs matplotlib: pip install 'luce-daemon[bench]'", EXIT_BAD_ARGS) from None


def save_plot(pyplot: Any, results: Results, path: Path) -> None:
    """Raises Failure."""
    rows, drafts = depth_rows(results.depths), speculation_rows(results.speculation)
    figure, axes = pyplot.subplots(1, 4 if drafts else 3, figsize=(20 if drafts else 15, 4))
    for side in results.sides:
        own = [row for row in rows if row.side == side]
        depths = [row.n_prompt for row in own]
        axes[0].plot(depths, [row.read_per_s for row in own], marker="o", label=side)
        axes[1].plot(depths, [row.decoded_per_s or 0 for row in own], marker="o", label=side)
        for name, times in (
            ("cold", [row.cold_first_token_s for row in own]),
            ("warm", [row.warm_first_token_s for row in own]),
        ):
            axes[2].plot(depths, [time * 1e3 for time in times], marker="o", label=f"{side}, {name}")
    titles = ("prompt tokens read a second", "tokens decoded a second", "first token, ms")
    for axis, title in zip(axes, titles, strict=False):
        axis.set(title=title, xlabel="prompt, tokens", xscale="log", ylim=(0, None))
        axis.legend()
    axes[2].set(yscale="log", ylim=(None, None))
    if drafts:
        names = [row.prompt for row in drafts]
        axes[3].bar(names, [row.ratio[0] for row in drafts])
        axes[3].axhline(1, color="grey")
        axes[3].set(title="decoding with drafts, times plain")
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise Failure(f"--plot {path}: {error}", EXIT_REFUSED) from None
    pyplot.close(figure)
