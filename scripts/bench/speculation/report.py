"""What the speculation benchmark has found: cells of counts and seconds, ratios pair by pair, tables, JSON.

Pure. It must not know an engine.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from rich.console import Console
from rich.table import Table

from luce.protocol import Speculation
from scripts.bench.harness import Ratio
from scripts.bench.speculation.sides import Wave

PLAIN, GATE, FIXED, SERVER = "plain", "gate", "fixed", "server"
AIM_PLAIN, AIM_FIXED, AIM_SERVER, AIM_SERVER_ALL = 0.98, 0.95, 1.0, 1.1


@dataclass(frozen=True)
class Cell:
    """One side's pass over one set, or a sum of such."""

    n_decoded: int = 0
    seconds: float = 0.0
    wall_s: float = 0.0
    speculation: Speculation | None = None
    """None: no answer says anything of it."""

    @classmethod
    def of(cls, waves: Iterable[Wave]) -> Self:
        return cls.sum(cls._of(wave) for wave in waves)

    @classmethod
    def _of(cls, wave: Wave) -> Self:
        told = [answer.speculation for answer in wave.answers if answer.speculation is not None]
        return cls(wave.n_decoded, wave.seconds, wave.wall_s, sum(told, Speculation()) if told else None)

    @classmethod
    def sum(cls, cells: Iterable[Cell]) -> Self:
        rows = list(cells)
        told = [row.speculation for row in rows if row.speculation is not None]
        return cls(
            sum(row.n_decoded for row in rows), sum(row.seconds for row in rows), sum(row.wall_s for row in rows),
            sum(told, Speculation()) if told else None,
        )  # fmt: skip

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.n_decoded / max(self.seconds, 1e-9)

    @property
    def tokens_per_step(self) -> float | None:
        return self.speculation.tokens_per_step if self.speculation else None

    @property
    def accepted_per_draft(self) -> float | None:
        """Drafted tokens that were right in each step that had any."""
        if self.speculation is None or self.speculation.n_speculated_steps == 0:
            return None
        return self.speculation.n_accepted / self.speculation.n_speculated_steps

    @property
    def speculated(self) -> float | None:
        """The share of steps."""
        return self.speculation.speculated_share if self.speculation else None

    @property
    def acceptance(self) -> float | None:
        return self.speculation.acceptance if self.speculation else None

    @property
    def draft_share(self) -> float | None:
        """Of the time, that in which drafts were made. REQUIRES: one lane."""
        return self.speculation.draft_s / max(self.seconds, 1e-9) if self.speculation else None


@dataclass
class Sameness:
    """Whether a side's answers are plain decoding's, by the margin rule (tests/daemon/same_tokens.py)."""

    n_answers: int = 0
    unclear: list[str] = field(default_factory=list)
    """Parted at a step whose margin is below the noise …"""
    clear: list[str] = field(default_factory=list)
    """… and above it: a wrong answer."""

    def plus(self, other: Sameness) -> Sameness:
        return Sameness(self.n_answers + other.n_answers, self.unclear + other.unclear, self.clear + other.clear)

    def __str__(self) -> str:
        n_same = self.n_answers - len(self.unclear) - len(self.clear)
        return f"{n_same} of {self.n_answers} the same, {len(self.unclear)} near ties, {len(self.clear)} WRONG"


@dataclass
class Group:
    """One number of lanes and one context length. Of each set and side its passes: the first one cold, then pairs."""

    n_lanes: int
    n_context: int
    set_names: tuple[str, ...]
    side_names: tuple[str, ...]
    cells: dict[tuple[str, str], list[Cell]] = field(default_factory=dict)
    same: dict[str, Sameness] = field(default_factory=dict)

    def passes(self, sets: Sequence[str], side: str) -> list[Cell]:
        """Sums over the sets, pass by pass: as many as each of them has."""
        return [Cell.sum(row) for row in zip(*(self.cells[name, side] for name in sets), strict=False)]

    def warm(self, sets: Sequence[str], side: str) -> Cell:
        return Cell.sum(self.passes(sets, side)[1:])

    def rate(self, sets: Sequence[str], side: str) -> float:
        """The median of the warm passes' tokens a second."""
        return statistics.median(cell.rate for cell in self.passes(sets, side)[1:])

    def ratio(self, sets: Sequence[str], side: str, other: str) -> Ratio:
        """Of the two sides' tokens a second, pair by pair."""
        return self.ratio_to_each(sets, side, dict.fromkeys(sets, other))

    def ratio_to_each(self, sets: Sequence[str], side: str, others: Mapping[str, str]) -> Ratio:
        """The same where each set has another one to be compared with."""
        theirs = [Cell.sum(row) for row in zip(*(self.cells[name, others[name]] for name in sets), strict=False)]
        pairs = list(zip(self.passes(sets, side), theirs, strict=True))[1:]
        return Ratio.of([a.rate / max(b.rate, 1e-9) for a, b in pairs])

    def wall_ratio(self, sets: Sequence[str], side: str, other: str) -> Ratio:
        """Of the two sides' times until the last answer of a wave has ended, by the client's clock, pair by pair."""
        pairs = list(zip(self.passes(sets, side), self.passes(sets, other), strict=True))[1:]
        return Ratio.of([b.wall_s / max(a.wall_s, 1e-9) for a, b in pairs])

    def cold_ratio(self, sets: Sequence[str], side: str, other: str) -> float:
        return self.passes(sets, side)[0].rate / max(self.passes(sets, other)[0].rate, 1e-9)

    def kind(self, kind: str) -> list[str]:
        return [name for name in self.side_names if name.partition(" ")[0] == kind]

    def best(self, sets: Sequence[str], kind: str) -> str | None:
        """The fastest side of this kind on these sets together."""
        return max(self.kind(kind), key=lambda side: self.rate(sets, side), default=None)

    def rows(self) -> list[tuple[str, tuple[str, ...]]]:
        """Each set by itself, and all of them."""
        rows: list[tuple[str, tuple[str, ...]]] = [(name, (name,)) for name in self.set_names]
        return rows if len(rows) == 1 else [*rows, ("all", self.set_names)]

    def to_json(self) -> dict[str, Any]:
        return {
            "lanes": self.n_lanes, "context": self.n_context, "sets": self.set_names, "sides": self.side_names,
            "passes": {
                name: {side: [asdict(cell) for cell in self.cells[name, side]] for side in self.side_names}
                for name in self.set_names
            },
            "figures": {name: figures(self, sets) for name, sets in self.rows()},
            "same": {side: asdict(same) for side, same in self.same.items()},
        }  # fmt: skip

    def joined(self, other: Group) -> Group:
        """Both runs' warm passes, and the cold one of this run. REQUIRES: the same sets and sides."""
        cells = {key: [*passes, *other.cells[key][1:]] for key, passes in self.cells.items()}
        same = {side: told.plus(other.same[side]) for side, told in self.same.items()}
        return replace(self, cells=cells, same=same)


def figures(group: Group, sets: Sequence[str]) -> dict[str, Any]:
    """What one row of the table says."""
    found: dict[str, Any] = {"tokens_per_s": {side: group.rate(sets, side) for side in group.side_names}}
    if GATE not in group.side_names:
        return found
    warm = group.warm(sets, GATE)
    found |= {
        "cold_to_plain": group.cold_ratio(sets, GATE, PLAIN),
        "to_plain": asdict(group.ratio(sets, GATE, PLAIN)),
        "to_plain_until_last": asdict(group.wall_ratio(sets, GATE, PLAIN)),
        "cold_tokens_per_step": group.passes(sets, GATE)[0].tokens_per_step,
        "tokens_per_step": warm.tokens_per_step,
        "accepted_per_draft": warm.accepted_per_draft,
        "speculated": warm.speculated,
        "acceptance": warm.acceptance,
        "draft_share": warm.draft_share if group.n_lanes == 1 else None,
    }
    for kind in (FIXED, SERVER):
        if (best := group.best(sets, kind)) is not None:
            found[f"best_{kind}"] = best
            found[f"to_best_{kind}"] = asdict(group.ratio(sets, GATE, best))
            each = {name: group.best((name,), kind) or best for name in sets}
            found[f"to_best_{kind}_of_each"] = asdict(group.ratio_to_each(sets, GATE, each))
    return found


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def table_of(title: str, names: Sequence[str]) -> Table:
    table = Table(title=title)
    for i, name in enumerate(names):
        table.add_column(name, justify="right" if i else "left")
    return table


def show_group(console: Console, group: Group) -> None:
    n_pairs = len(next(iter(group.cells.values()))) - 1
    title = f"lanes {group.n_lanes}, context {group.n_context}: tokens a second, medians of {n_pairs} pairs"
    if GATE in group.side_names:
        show_gate(console, group, title)
    if group.kind(FIXED) or group.kind(SERVER) or GATE not in group.side_names:
        show_others(console, group, title)
    for side, same in group.same.items():
        said = f"llama-server: {same.n_answers - len(same.unclear)} of {same.n_answers} the same text"
        console.print(said if side == SERVER else f"{side}: {same}", highlight=False)
        for text in (*same.clear, *same.unclear)[:8]:
            console.print(f"  {text}", highlight=False, markup=False)


def show_gate(console: Console, group: Group, title: str) -> None:
    """Speculation against plain decoding."""
    names = ("set", "plain", "gate", "gate / plain, cold", "gate / plain", "until the last",
             "tokens a step, cold", "tokens a step", "right a draft", "acceptance", "steps speculated")  # fmt: skip
    table = table_of(title, names)
    for name, sets in group.rows():
        cold, warm = group.passes(sets, GATE)[0], group.warm(sets, GATE)
        table.add_row(
            name, f"{group.rate(sets, PLAIN):.0f}", f"{group.rate(sets, GATE):.0f}",
            f"{group.cold_ratio(sets, GATE, PLAIN):.3f}", str(group.ratio(sets, GATE, PLAIN)),
            f"{group.wall_ratio(sets, GATE, PLAIN).median:.3f}",
            number(cold.tokens_per_step), number(warm.tokens_per_step), number(warm.accepted_per_draft),
            share(warm.acceptance), share(warm.speculated),
        )  # fmt: skip
    console.print(table)


def show_others(console: Console, group: Group, title: str) -> None:
    """Speculation against what else there is."""
    has_gate, has_fixed, has_server = (bool(group.kind(kind)) for kind in (GATE, FIXED, SERVER))
    names = ["set", "gate" if has_gate else "plain"]
    names += ["best fixed", "gate / it"] if has_fixed else []
    names += ["llama-server", "its best", "gate / it"] if has_server else []
    table = table_of(title, names)
    for name, sets in group.rows():
        cells = [name, f"{group.rate(sets, GATE if has_gate else PLAIN):.0f}"]
        if has_fixed:
            cells += best_cells(group, sets, FIXED)
        if has_server:
            plain_server = f"{group.rate(sets, SERVER):.0f}" if SERVER in group.side_names else "-"
            cells += [plain_server, *best_cells(group, sets, SERVER)]
        table.add_row(*cells)
    console.print(table)


def best_cells(group: Group, sets: Sequence[str], kind: str) -> list[str]:
    best = group.best(sets, kind)
    assert best is not None
    shown = f"{best.removeprefix(kind).strip() or 'plain'}: {group.rate(sets, best):.0f}"
    return [shown, str(group.ratio(sets, GATE, best)) if GATE in group.side_names else "-"]


@dataclass(frozen=True)
class Verdict:
    """One aim: the worst figure there was."""

    what: str
    value: float
    aim: float
    where: str

    def __str__(self) -> str:
        reached = "reached" if self.value >= self.aim else "NOT reached"
        return f"{self.what}: {self.value:.3f} ({self.where}), aim {self.aim}: {reached}"


def verdicts(groups: Sequence[Group]) -> list[Verdict]:
    """The issue's aims, each by its worst set; pairs with nothing to compare are left out."""
    found: dict[str, list[Verdict]] = {}
    for group in groups:
        if GATE not in group.side_names:
            continue
        for name, sets in group.rows():
            where = f"{name}, lanes {group.n_lanes}, context {group.n_context}"
            row = figures(group, sets)
            wanted = [("gate / plain, worst", "to_plain", AIM_PLAIN)]
            wanted += [("gate / best fixed of each set, worst", "to_best_fixed_of_each", AIM_FIXED)]
            wanted += [("gate / best llama-server, worst set", "to_best_server", AIM_SERVER)]
            if len(sets) > 1:
                wanted += [("gate / best llama-server of each set, overall", "to_best_server_of_each", AIM_SERVER_ALL)]
            for what, key, aim in wanted:
                if key in row:
                    found.setdefault(what, []).append(Verdict(what, row[key]["median"], aim, where))
    return [min(rows, key=lambda row: row.value) for rows in found.values()]
