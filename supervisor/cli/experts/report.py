"""What is known of a mixture's experts, as tables and as JSON. Pure but for the console it prints to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from luce.supervisor.cli.experts.hit_curves import PERCENTS, Curves, chance, compare, spread_of
from luce.supervisor.cli.experts.profile_file import PHASES, ExpertProfile

if TYPE_CHECKING:
    from rich.console import Console


def profile_json(profile: ExpertProfile) -> dict[str, Any]:
    curves = [compare(profile, profile, phase, PERCENTS).profile for phase in PHASES]
    return {
        "identity": profile.identity,
        "experts": n_experts(profile),
        "layers": [
            {"layer": use.layer, "experts": len(use.decode)}
            | {phase: asdict(spread_of(use.of(phase))) for phase in PHASES}
            for use in profile.layers
        ],
        "hits": [
            {"share": percent / 100} | {phase: _at(curve, row) for phase, curve in zip(PHASES, curves, strict=True)}
            for row, percent in enumerate(PERCENTS)
        ],
    }


def validation_json(profile: ExpertProfile, held_back: ExpertProfile) -> dict[str, Any]:
    curves = {phase: compare(profile, held_back, phase, PERCENTS) for phase in PHASES}
    by_chance = chance(n_experts(profile), PERCENTS)
    return {
        "identity": profile.identity,
        "experts": n_experts(profile),
        "hits": [
            {"share": percent / 100, "chance": by_chance[row]}
            | {phase: {"profile": _at(curve.profile, row), "best": _at(curve.best, row)}
               for phase, curve in curves.items()}
            for row, percent in enumerate(PERCENTS)
        ],
    }  # fmt: skip


def n_experts(profile: ExpertProfile) -> int:
    """Of all layers."""
    return sum(profile.shape().values())


def print_profile(console: Console, name: str, profile: ExpertProfile) -> None:
    rows = []
    for use in profile.layers:
        cells = [f"{use.layer}", f"{len(use.decode):,}"]
        for phase in PHASES:
            spread = spread_of(use.of(phase))
            effective = "-" if spread.effective is None else f"{spread.effective:,.1f}"
            cells += [f"{spread.uses:,.0f}", effective, _percent(spread.most_used_share)]
        rows.append(cells)
    of_phase = ("uses", "effective", "most used")
    headings = ["layer", "experts", *(f"{phase}: {what}" for phase in PHASES for what in of_phase)]
    _print_table(console, f"Experts of {name}", headings, rows)
    curves = [compare(profile, profile, phase, PERCENTS).profile for phase in PHASES]
    hits = [[f"{percent} %", *(_percent(_at(curve, row)) for curve in curves)] for row, percent in enumerate(PERCENTS)]
    _print_table(console, "Hits of a device that holds the most used ones", ["experts held", *PHASES], hits)


def print_validation(console: Console, profile: ExpertProfile, held_back: ExpertProfile) -> None:
    curves: list[Curves] = [compare(profile, held_back, phase, PERCENTS) for phase in PHASES]
    by_chance = chance(n_experts(profile), PERCENTS)
    rows = [
        [f"{percent} %",
         *(_percent(_at(hits, row)) for curve in curves for hits in (curve.profile, curve.best)),
         _percent(by_chance[row])]
        for row, percent in enumerate(PERCENTS)
    ]  # fmt: skip
    headings = ["experts held", *(f"{phase}: {order}" for phase in PHASES for order in ("profile", "best")), "chance"]
    _print_table(console, "Hits on texts that were held back", headings, rows)


def _at(curve: Sequence[float] | None, row: int) -> float | None:
    return None if curve is None else curve[row]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _print_table(console: Console, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
