"""What the residency benchmark has found: what is still found of needles, ratios turn by turn, tables.

Pure. It must not know an engine.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from scripts.bench.residency.flatness import BOUNDED, HOME, WHOLE, FlatnessSample
from scripts.bench.residency.recall import RecallSample
from scripts.bench.residency.sides import DRAFT, FULL, LRU, QUERY

ALL = "all"
AIM_OF_FULL = {12: 0.95, 6: 0.88}  # of the full cache's recall, by residency in percent
AIM_FLAT, AIM_STALL = 1.05, 0.02
AIM_LRU = 0.1  # of the needles that its window does not hold


@dataclass(frozen=True)
class RecallRow:
    """What was found of the needles of one kind at one residency. Shares are of 1; None: nothing to divide by."""

    kind: str
    percent: int
    n_pool: int
    n_tokens: int
    n: int
    n_found: dict[str, int]
    n_outside: int
    """Needles that the newest pages do not hold and that the full cache found,"""
    n_outside_found: dict[str, int]
    """and how many of them each policy found."""

    @classmethod
    def of(cls, kind: str, samples: Sequence[RecallSample]) -> RecallRow:
        outside = [sample for sample in samples if sample.is_outside and sample.is_right(FULL)]
        return cls(
            kind, samples[0].percent, samples[0].n_pool, round(statistics.mean(s.n_prompt for s in samples)),
            len(samples), _found(samples), len(outside), _found(outside),
        )  # fmt: skip

    @property
    def sides(self) -> tuple[str, ...]:
        """The full cache and the policies, always in the same order."""
        return tuple(side for side in (FULL, QUERY, DRAFT, LRU) if side in self.n_found)

    @property
    def policies(self) -> tuple[str, ...]:
        return self.sides[1:]

    def recall(self, side: str) -> float:
        return self.n_found[side] / self.n

    def of_full(self, side: str) -> float | None:
        return self.n_found[side] / self.n_found[FULL] if self.n_found[FULL] else None

    def outside(self, side: str) -> float | None:
        return self.n_outside_found[side] / self.n_outside if self.n_outside and side in self.n_found else None


def _found(samples: Iterable[RecallSample]) -> dict[str, int]:
    """By the sides that took part in all of them."""
    rows = list(samples)
    sides = [side for side in rows[0].answers if all(side in row.answers for row in rows)] if rows else []
    return {side: sum(row.is_right(side) for row in rows) for side in sides}


def recall_rows(samples: Sequence[RecallSample]) -> list[RecallRow]:
    """By residency, largest first, the kinds in their order and then all of them together."""
    rows = []
    for percent in sorted({sample.percent for sample in samples}, reverse=True):
        here = [sample for sample in samples if sample.percent == percent]
        kinds = dict.fromkeys(sample.kind for sample in here)
        rows += [RecallRow.of(kind, [sample for sample in here if sample.kind == kind]) for kind in kinds]
        rows.append(RecallRow.of(ALL, here))
    return rows


def show_recall(console: Console, rows: Sequence[RecallRow]) -> None:
    table = Table(title="needles found, percent of the prompts; / full: of what the whole text in sight finds")
    policies = rows[0].policies if rows else ()
    names = ("residency", "pool of tokens", "needles", "n", FULL, *policies, *(f"{side} / full" for side in policies),
             *(f"outside the window: {side}" for side in policies))  # fmt: skip
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            f"{row.percent} %", f"{row.n_pool} of {row.n_tokens}", row.kind, str(row.n),
            *(_percent(row.recall(side)) for side in row.sides), *(_percent(row.of_full(side)) for side in policies),
            *(f"{row.n_outside_found.get(side, 0)} of {row.n_outside}" for side in policies),
            end_section=row.kind == ALL,
        )  # fmt: skip
    console.print(table)


@dataclass(frozen=True)
class FlatnessRow:
    """One position: medians over the turns, ratios turn by turn."""

    position: int
    to_home: tuple[float, ...]
    """Time a decoded token: bounded, over the same daemon's with a text that fits,"""
    to_whole: tuple[float, ...]
    """and over that of luced with the whole text in its cells, if that was measured."""
    stall_share: float
    prefill_s: dict[str, float]
    """A token of what was new at this position, by side."""
    n_pool: dict[str, int]
    n_choices: int
    pages_out: int
    host_bytes: int
    resident_kb: dict[str, int]


def flatness_rows(samples: Sequence[FlatnessSample]) -> list[FlatnessRow]:
    return [_flatness_row([s for s in samples if s.position == p]) for p in sorted({s.position for s in samples})]


def _flatness_row(samples: Sequence[FlatnessSample]) -> FlatnessRow:
    warm = {side: [s for s in samples if s.side == side and s.n_turn > 0] for side in (BOUNDED, HOME, WHOLE)}
    cold = {s.side: s for s in samples if s.n_turn == 0 and s.side != HOME}
    ours = warm[BOUNDED]
    sides = [side for side in (BOUNDED, WHOLE) if warm[side]]
    return FlatnessRow(
        ours[0].position,
        tuple(a.token_s / b.token_s for a, b in zip(ours, warm[HOME], strict=True)),
        tuple(a.token_s / b.token_s for a, b in zip(ours, warm[WHOLE], strict=True)) if warm[WHOLE] else (),
        statistics.median(s.stall_share for s in ours),
        {side: sample.prefill_s / sample.n_read for side, sample in cold.items()},
        {side: warm[side][0].n_pool for side in sides},
        max(s.n_choices for s in ours),
        max(s.pages_out for s in ours),
        max(s.host_bytes for s in ours),
        {side: max(s.resident_kb for s in warm[side]) for side in sides},
    )


def show_flatness(console: Console, rows: Sequence[FlatnessRow]) -> None:
    table = Table(title="a decoded token and a token of the prompt as the text grows; ratios: median (range)")
    names = ("position", "decoding: bounded / home", "bounded / whole", "stalls", "prefill: bounded / first position",
             "whole / first position", "pool: bounded, whole", "pages out", "choices", "host, MB",
             "resident, MB: bounded, whole")  # fmt: skip
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        grown = {side: f"{row.prefill_s[side] / rows[0].prefill_s[side]:.2f}"
                 for side in row.prefill_s if side in rows[0].prefill_s}  # fmt: skip
        table.add_row(
            str(row.position), _ratio(row.to_home), _ratio(row.to_whole), f"{row.stall_share * 100:.2f} %",
            grown[BOUNDED], grown.get(WHOLE, "-"), ", ".join(map(str, row.n_pool.values())),
            str(row.pages_out), str(row.n_choices), f"{row.host_bytes / 1e6:.1f}",
            ", ".join(f"{kb / 1e3:.0f}" for kb in row.resident_kb.values()),
        )  # fmt: skip
    console.print(table)


@dataclass(frozen=True)
class Verdict:
    """One aim and what was measured."""

    what: str
    value: float
    aim: float
    is_least: bool
    """Whether the aim is the least that the value may be, or the most."""

    @property
    def is_reached(self) -> bool:
        return self.value >= self.aim if self.is_least else self.value <= self.aim

    def __str__(self) -> str:
        word = "at least" if self.is_least else "at most"
        reached = "reached" if self.is_reached else "NOT reached"
        return f"{self.what}: {self.value:.3f}, aim {word} {self.aim}: {reached}"


def verdicts(recall: Sequence[RecallRow], flatness: Sequence[FlatnessRow]) -> list[Verdict]:
    """What could be measured is judged: the needles of all kinds together, flatness by its worst position."""
    found = []
    for row in recall:
        share, outside = row.of_full(QUERY), row.outside(LRU)
        if row.kind != ALL:
            continue
        if row.percent in AIM_OF_FULL and share is not None:
            found.append(Verdict(f"recall at {row.percent} %, query / full", share, AIM_OF_FULL[row.percent], True))
        if outside is not None:
            found.append(Verdict(f"recall at {row.percent} %, lru outside its window", outside, AIM_LRU, False))
    if flatness:
        worst = max(statistics.median(row.to_home) for row in flatness)
        found.append(Verdict("decoding, bounded / home, worst position", worst, AIM_FLAT, False))
        stalls = max(row.stall_share for row in flatness)
        found.append(Verdict("stalls, share of decoding, worst position", stalls, AIM_STALL, False))
    return found


def to_json(
    recall: Sequence[RecallSample],
    flatness: Sequence[FlatnessSample],
    options: dict[str, Any],
) -> dict[str, Any]:
    """Everything that was measured, and what it comes to."""
    recalled, flat = recall_rows(recall), flatness_rows(flatness)
    return {
        "options": options,
        "recall": {
            "samples": [asdict(s) for s in recall],
            "rows": [asdict(row) for row in recalled],
        },
        "flatness": {"samples": [asdict(s) for s in flatness], "rows": [asdict(row) for row in flat]},
        "verdicts": [asdict(v) | {"is_reached": v.is_reached} for v in verdicts(recalled, flat)],
    }


def _ratio(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.3f} ({min(values):.3f} .. {max(values):.3f})"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.0f}"
