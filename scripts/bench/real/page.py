"""Writes the tables of docs/benchmarks/real.md from the files that `python -m scripts.bench.real` has left in
docs/benchmarks/real. The words around them are written by hand; each table stands between two markers.

    python -m scripts.bench.real.page
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.bench.harness import ROOT
from scripts.bench.real.rows import NAMES, Row

PAGE = ROOT / "docs" / "benchmarks" / "real.md"
RESULTS = ROOT / "docs" / "benchmarks" / "real"
BEHIND = "▽"
TOLERANCE = 0.02
LESS_IS_BETTER = ("s", "MB")
MORE_IS_BETTER = ("tokens/s", "tokens a second of processor time", "times")


@dataclass(frozen=True)
class Result:
    """One file: a cell, measured of one model on one machine."""

    cell: str
    place: str
    """cpu or gpu."""
    model: str
    machine: str
    commit: str
    cache_type: str
    rows: Sequence[Row]


def load(folder: Path) -> list[Result]:
    found = []
    for path in sorted(folder.glob("*.json")):
        told = json.loads(path.read_text())
        rows = [Row(**row) for row in told["rows"]]
        place = path.stem.rpartition("-")[2]
        found.append(
            Result(told["cell"], place, told["model"], told["machine"], told["commit"], told["cache_type"], rows)
        )
    order = list(NAMES.values())
    return sorted(found, key=lambda result: order.index(result.model) if result.model in order else len(order))


def number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def is_behind(row: Row) -> bool:
    """The peer is faster, or takes less time or memory, by more than TOLERANCE."""
    if row.theirs is None:
        return False
    if row.unit in LESS_IS_BETTER:
        return row.ours > row.theirs * (1 + TOLERANCE)
    return row.unit in MORE_IS_BETTER and row.ours < row.theirs * (1 - TOLERANCE)


def cell_of(row: Row) -> str:
    """Ours, and after a stroke the peer's; a missed aim in bold; marked where we are behind."""
    text = number(row.ours) if row.theirs is None else f"{number(row.ours)} / {number(row.theirs)}"
    text = f"**{text}**" if row.is_met is False else text
    return f"{text} {BEHIND}" if is_behind(row) else text


def table(results: Sequence[Result]) -> str:
    """One column a model, one line for each thing that a model's rows name. REQUIRES: one cell and place."""
    by_model = [(result.model, {row.what: row for row in result.rows}) for result in results]
    names = list(dict.fromkeys(row.what for result in results for row in result.rows))
    lines = [
        f"| | unit | {' | '.join(model for model, _ in by_model)} | aim |",
        "|---|---|" + "---|" * (len(by_model) + 1),
    ]
    for name in names:
        rows = [rows.get(name) for _, rows in by_model]
        some = next(row for row in rows if row is not None)
        cells = ["" if row is None else cell_of(row) for row in rows]
        lines.append(f"| {name} | {some.unit} | {' | '.join(cells)} | {some.aim} |")
    return "\n".join(lines)


def missed(results: Iterable[Result]) -> str:
    """The missed aims under their reasons."""
    by_reason: dict[str, dict[str, list[str]]] = {}
    for result in results:
        for row in result.rows:
            if row.is_met is False:
                models = by_reason.setdefault(row.note or "no reason found yet", {})
                models.setdefault(result.model, []).append(row.what)
    lines = [
        f"- {reason}: " + "; ".join(f"{model} ({', '.join(what)})" for model, what in models.items())
        for reason, models in by_reason.items()
    ]
    return "" if not lines else "\n\nMissed:\n\n" + "\n".join(lines)


def block(results: Sequence[Result]) -> str:
    """What stands between a cell's markers: a table for each place."""
    parts = []
    for place, title in (("cpu", "CPU"), ("gpu", "GPU")):
        here = [result for result in results if result.place == place]
        if here:
            machines = "; ".join(dict.fromkeys(f"{result.machine}, commit {result.commit}" for result in here))
            parts.append(f"{title}: {machines}, {here[0].cache_type} KV.\n\n{table(here)}{missed(here)}")
    return "\n\n".join(parts)


def written(text: str, results: Sequence[Result]) -> str:
    """The page with new tables. Raises ValueError where a result's cell has no place on it."""
    for cell in dict.fromkeys(result.cell for result in results):
        place = re.search(rf"<!-- {cell} -->\n(.*?)<!-- end -->", text, re.DOTALL)
        if place is None:
            raise ValueError(f"{PAGE.name} has no place for {cell}: a line '<!-- {cell} -->' and '<!-- end -->'")
        now = block([result for result in results if result.cell == cell])
        text = f"{text[: place.start(1)]}\n{now}\n\n{text[place.end(1) :]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(), load(RESULTS)))
