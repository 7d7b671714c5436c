"""Tables, JSON and a picture of what simulations found. Simulates nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from luce.supervisor.cli.pictures import save_figure
from scripts.sim.figures import Figures
from scripts.sim.runs import Run

Results = Sequence[tuple[Run, Figures]]

_COLUMNS = (
    "requests", "hit", "ideal", "read / ideal", "first p50, s", "p99, s", "answer p50, s", "waited p99, s", "at work",
    "max / mean", "moved", "from host, GB", "store, GB", "told, MB",
)  # fmt: skip


_MEASURES: Sequence[tuple[str, Callable[[Figures], float]]] = (
    ("tokens read / ideal", lambda figures: figures.read_over_ideal),
    ("first token p50, s", lambda figures: figures.first_p50_s),
    ("first token p99, s", lambda figures: figures.first_p99_s),
)


def row(figures: Figures) -> list[str]:
    store = (figures.fetched_bytes + figures.stored_bytes) / 1e9
    return [
        f"{figures.n_requests:,}", f"{figures.hit_share:.1%}", f"{figures.ideal_share:.1%}",
        f"{figures.read_over_ideal:.2f}", f"{figures.first_p50_s:.2f}", f"{figures.first_p99_s:.1f}",
        f"{figures.whole_p50_s:.1f}", f"{figures.waited_p99_s:.1f}", f"{figures.utilisation:.0%}",
        f"{figures.imbalance:.2f}", f"{figures.moved_share:.1%}", f"{figures.restored_bytes / 1e9:,.0f}",
        f"{store:,.0f}", f"{figures.knowledge_bytes / 1e6:,.0f}",
    ]  # fmt: skip


def print_results(console: Console, results: Results, varied: str | None) -> None:
    """A table for each scenario and number of replicas."""
    groups: dict[tuple[str, int], list[tuple[Run, Figures]]] = {}
    for run, figures in results:
        groups.setdefault((run.scenario, run.plan.n_replicas), []).append((run, figures))
    for (scenario, n_replicas), group in groups.items():
        minutes = group[0][0].plan.duration_s / 60
        title = f"{scenario}, {n_replicas:,} replicas, {minutes:.0f} minutes"
        table = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False, padding=(0, 1))
        for at, name in enumerate(("router", *([varied] if varied else []), *_COLUMNS)):
            table.add_column(name, justify="left" if at == 0 else "right")
        for run, figures in group:
            shown = [str(run.varied)] if varied else []
            table.add_row(run.plan.router, *shown, *row(figures))
        console.print(table)
        resumed = [f"{run.plan.router} {figures.n_resumed:,} ({figures.stall_p99_s:.1f} s)"
                   for run, figures in group if figures.n_resumed]  # fmt: skip
        if resumed:
            console.print("answers that went on elsewhere (99 % within): " + ", ".join(resumed), markup=False)


def to_json(results: Results, options: dict[str, Any]) -> dict[str, Any]:
    return {
        "options": options,
        "runs": [
            {"scenario": run.scenario, "varied": run.varied, "plan": asdict(run.plan), "prices": asdict(run.prices),
             "figures": figures.to_json()}
            for run, figures in results
        ],
    }  # fmt: skip


def save_plot(pyplot: Any, results: Results, varied: str | None, path: Path) -> None:
    """Read over ideal, and the 99th percentile of the first token, by router: over the varied parameter, or over the
    number of replicas; a row for each scenario."""
    scenarios = list(dict.fromkeys(run.scenario for run, _ in results))
    figure, axes = pyplot.subplots(len(scenarios), 3, figsize=(13, 3.4 * len(scenarios)), squeeze=False)
    for scenario, row_axes in zip(scenarios, axes, strict=True):
        for axis, (name, measure) in zip(row_axes, _MEASURES, strict=True):
            for router in dict.fromkeys(run.plan.router for run, _ in results):
                chosen = [(run, found) for run, found in results
                          if run.plan.router == router and run.scenario == scenario]  # fmt: skip
                places = [run.varied if varied else run.plan.n_replicas for run, _ in chosen]
                axis.plot(places, [measure(found) for _, found in chosen], marker="o", markersize=3, label=router)
            axis.set_title(f"{scenario}: {name}", fontsize=9)
            axis.set_xlabel(varied or "replicas")
            if varied is None:
                axis.set_xscale("log")
            axis.set_yscale("log")
            axis.grid(visible=True, alpha=0.3)
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    save_figure(pyplot, figure, path)
