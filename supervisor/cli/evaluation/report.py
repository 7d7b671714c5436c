"""What `luce eval` found, as tables and as JSON. Pure but for the console it prints to; must not know how anything is
asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Any

from luce.supervisor.evaluating.results import Results
from luce.supervisor.evaluating.statistics import Interval

if TYPE_CHECKING:
    from rich.console import Console


def to_json(results: Results) -> dict[str, Any]:
    """Settings, rows and every answer."""
    return {
        "version": metadata.version("luce-daemon"),
        "settings": results.settings,
        "sides": results.sides,
        "ended_early": results.ended or None,
        "questions": results.n_questions,
        "at_least": dict(results.at_least),
        "scores": [asdict(row) for row in results.score_rows()],
        "differences": [asdict(row) for row in results.difference_rows()],
        "same_answers": [asdict(row) for row in results.same_rows()],
        "shortfalls": [str(shortfall) for shortfall in results.shortfalls()],
        "left_out": results.refusals(),
        "answers": [
            {
                "task": asked.question.task,
                "question": asked.question.name,
                "length": asked.question.length,
                "right": asdict(asked.question.right),
                "sides": [asdict(outcome) for outcome in asked.outcomes],
                "refusal": asked.refusal,
            }
            for asked in results.asked
        ],
    }


def print_results(console: Console, results: Results) -> None:
    from rich.table import Table

    has_two = len(results.sides) > 1
    title = ", ".join(f"{name}: {what}" for name, what in results.sides.items())
    names = ["what", "length", *(["side"] if has_two else []), "asked", "prompt", "right", "95 of 100", "wanted"]
    first = next(iter(results.sides))
    rows = []
    for row in results.score_rows():
        wanted = results.at_least.get(row.metric) if row.side == first and row.length is None else None
        rows.append(
            [row.metric, "all" if row.length is None else f"{row.length:,}", *([row.side] if has_two else []),
             f"{row.n:,}", f"{row.n_prompt:,}", f"{row.score.value:.1%}", _range(row.score),
             "" if wanted is None else f"{wanted:.0%}"]
        )  # fmt: skip
    console.print(_table(Table(title=title), names, rows))
    if has_two:
        differences = [
            [row.metric, f"{row.n:,}", f"{row.difference.value:+.1%}", _range(row.difference, "+"),
             f"{row.n_better:,}", f"{row.n_worse:,}"]
            for row in results.difference_rows()
        ]  # fmt: skip
        title = f"{' less '.join(results.sides)}, question by question"
        console.print(
            _table(Table(title=title), ["what", "asked", "difference", "95 of 100", "better", "worse"], differences)
        )
        same = [[row.task, f"{row.n:,}", f"{row.share.value:.1%}", _range(row.share)] for row in results.same_rows()]
        console.print(
            _table(Table(title="answers that are the same, word by word"), ["task", "asked", "same", "95 of 100"], same)
        )
    for line in results.refusals():
        console.print(line, markup=False)
    if results.ended:
        asked = f"{len(results.asked):,} of {results.n_questions:,} questions were asked"
        console.print(f"ended early: {results.ended}; {asked}", markup=False)


def _range(interval: Interval, sign: str = "") -> str:
    return f"{interval.low:{sign}.1%} .. {interval.high:{sign}.1%}"


def _table(table: Any, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    table.title_justify = "left"
    for at, name in enumerate(names):
        table.add_column(name, justify="left" if at == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
