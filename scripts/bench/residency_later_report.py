"""What was found of needles that an answer came to need late: by the place in the answer, a table. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from scripts.bench.residency_later import LaterSample, Need
from scripts.bench.residency_sides import DRAFT, FULL, LRU, QUERY


@dataclass(frozen=True)
class LaterRow:
    """One need at one residency."""

    percent: int
    n_pool: int
    need: Need
    n: int
    n_found: dict[str, int]
    """By side."""

    @property
    def sides(self) -> tuple[str, ...]:
        return tuple(side for side in (FULL, QUERY, DRAFT, LRU) if side in self.n_found)


def later_rows(samples: Sequence[LaterSample]) -> list[LaterRow]:
    """By residency, largest first; unannounced needs first, then by how long before the choice they were."""
    rows = []
    keys = {(sample.percent, sample.need) for sample in samples}
    for percent, need in sorted(keys, key=lambda key: (-key[0], key[1].mentioned or 0, key[1].place)):
        here = [sample for sample in samples if (sample.percent, sample.need) == (percent, need)]
        n_found = {side: sum(sample.is_right(side) for sample in here) for side in here[0].answers}
        rows.append(LaterRow(percent, here[0].n_pool, need, len(here), n_found))
    return rows


def show_later(console: Console, rows: Sequence[LaterRow]) -> None:
    table = Table(title="codes that an answer comes to need late: found, by tokens around a choice of pages")
    sides = rows[0].sides if rows else ()
    for name in ("residency", "pool", "announced before it", "written behind it", "n", *sides):
        table.add_column(name, justify="right")
    for row in rows:
        announced = "-" if row.need.mentioned is None else str(row.need.mentioned)
        found = (str(row.n_found[side]) for side in row.sides)
        table.add_row(f"{row.percent} %", str(row.n_pool), announced, str(row.need.place), str(row.n), *found)
    console.print(table)
