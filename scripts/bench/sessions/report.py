"""Tables, JSON and a picture of what sessions are like and what features bring. Measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from luce.supervisor.cli.pictures import save_figure
from scripts.bench.harness import Ratio
from scripts.bench.sessions.distributions import Distributions, Quantiles
from scripts.bench.sessions.isolation import ArmRow, Rounds, arm_rows, most_of_others, together

_KINDS = ("prompt", "new", "answer", "of_conversation", "of_any", "person_s", "tools_s")
_NAMES = {
    "prompt": "prompt, tokens", "new": "new in a later request, tokens", "answer": "answer, tokens",
    "of_conversation": "known from the same conversation", "of_any": "known from any request before",
    "person_s": "a person's pause, s", "tools_s": "tools between two requests, s",
}  # fmt: skip


def quantiles(found: Distributions) -> dict[str, Quantiles | None]:
    return {_NAMES[kind]: Quantiles.of(getattr(found, kind)) for kind in _KINDS} | {
        f"{name}, s": Quantiles.of(seconds) for name, seconds in sorted(found.tool_s.items())
    }


def print_distributions(console: Console, found: Distributions) -> None:
    title = f"{found.n_sessions} sessions, {found.n_requests} requests"
    table = _table(title, ("of each request", "values", "p10", "median", "p90", "most"))
    for name, at in quantiles(found).items():
        if at is not None:
            shown = (_number(name, value) for value in (at.p10, at.p50, at.p90, at.most))
            table.add_row(name, f"{at.n:,}", *shown)
    console.print(table)


def _number(name: str, value: float) -> str:
    if name.startswith("known"):
        return f"{value:.0%}"
    return f"{value:,.1f}" if name.endswith(", s") else f"{value:,.0f}"


def print_isolation(console: Console, features: tuple[str, str], rounds: Rounds) -> None:
    title = f"times faster than with neither, {len(rounds)} rounds: median (least .. most)"
    table = _table(title, ("", "first tokens", "whole answers", "all sessions", "CPU time", "reused", "same answers"))
    for row in arm_rows(features, rounds):
        table.add_row(row.name, *_ratios(row), f"{row.reused:.0%}", f"{row.same:.0%}")
    product = together(rounds)
    table.add_row(
        "both over the product", *(_ratio(product[name]) for name in ("first", "whole", "wall", "cpu")), "", ""
    )
    console.print(table)
    console.print(f"Other programs took up to {most_of_others(rounds):.0%} of the cores meanwhile.")


def _ratios(row: ArmRow) -> list[str]:
    return [_ratio(ratio) for ratio in (row.first, row.whole, row.wall, row.cpu)]


def _ratio(ratio: Ratio) -> str:
    return f"{ratio.median:.2f} ({ratio.low:.2f} .. {ratio.high:.2f})"


def _table(title: str, names: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for at, name in enumerate(names):
        table.add_column(name, justify="left" if at == 0 else "right", no_wrap=True)
    return table


def to_json(found: Distributions, features: tuple[str, str], rounds: Rounds, options: dict[str, Any]) -> dict[str, Any]:
    return {
        "options": options,
        "quantiles": {name: None if at is None else asdict(at) for name, at in quantiles(found).items()},
        "distributions": asdict(found),
        "features": features,
        "arms": [asdict(row) for row in arm_rows(features, rounds)] if rounds else [],
        "both_over_product": {name: asdict(ratio) for name, ratio in together(rounds).items()} if rounds else {},
        "rounds": [
            {
                "+".join(name for name, is_on in zip(features, chosen, strict=True) if is_on) or "neither": {
                    "first_s": played.first_s, "whole_s": played.whole_s, "wall_s": played.wall_s,
                    "cpu_s": played.cpu_s, "others": played.others, "reused": played.reused,
                }
                for chosen, played in found_arms.items()
            }
            for found_arms in rounds
        ],
    }  # fmt: skip


def save_plot(pyplot: Any, found: Distributions, path: Path) -> None:
    """Shares of the values that are at most so large."""
    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4), layout="constrained")
    groups = (("prompt", "new", "answer"), ("of_conversation", "of_any"), ("person_s", "tools_s"))
    for axis, group, title in zip(axes, groups, ("Tokens", "Known before", "Seconds"), strict=True):
        for kind in group:
            values = sorted(getattr(found, kind))
            if values:
                axis.step(values, [100 * (at + 1) / len(values) for at in range(len(values))], where="post",
                          label=_NAMES[kind])  # fmt: skip
        axis.set(title=title, ylabel="at most so much, %", ylim=(0, 100))
        if group[0] == "of_conversation":
            axis.set_xlim(0, 1)
        else:
            axis.set_xscale("symlog")
            axis.set_xlim(left=0)
        axis.grid(visible=True, alpha=0.3)
        axis.legend()
    save_figure(pyplot, figure, path)
