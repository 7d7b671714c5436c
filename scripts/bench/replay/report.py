"""What a replay has shown, as tables and as JSON. Pure.

Knows the figures; knows no engine.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from scripts.bench.replay.prompts import Prepared, Prompt
from scripts.bench.replay.run import Pass, Served


@dataclass(frozen=True)
class TurnResult:
    """One request over all repeats."""

    prompt: Prompt
    cold: tuple[Served, ...]
    warm: tuple[Served, ...]

    @property
    def ok(self) -> bool:
        return all(served.ok for served in (*self.cold, *self.warm))

    @property
    def cold_ttft_s(self) -> float:
        return statistics.median(served.ttft_s for served in self.cold)

    @property
    def warm_ttft_s(self) -> float:
        return statistics.median(served.ttft_s for served in self.warm)

    @property
    def speedup(self) -> float:
        """Of the first token: the median of the pairs' ratios."""
        return statistics.median(c.ttft_s / max(w.ttft_s, 1e-9) for c, w in zip(self.cold, self.warm, strict=True))

    @property
    def same_tokens(self) -> bool:
        return len({served.tokens for served in (*self.cold, *self.warm)}) == 1

    @property
    def parted_at(self) -> int | None:
        """The first token that is not the same in all passes."""
        steps = zip(*(served.tokens for served in (*self.cold, *self.warm)), strict=False)
        return next((step for step, tokens in enumerate(steps) if len(set(tokens)) > 1), None)

    @property
    def last_warm(self) -> Served:
        """Whose counts are shown: times differ from repeat to repeat, these hardly ever."""
        return self.warm[-1]


@dataclass(frozen=True)
class SessionResult:
    prepared: Prepared
    turns: tuple[TurnResult, ...]
    n_repeats: int

    @property
    def name(self) -> str:
        return self.prepared.session.name

    @property
    def good(self) -> tuple[TurnResult, ...]:
        return tuple(turn for turn in self.turns if turn.ok)

    @property
    def n_prompt(self) -> int:
        return sum(turn.last_warm.n_prompt for turn in self.good)

    @property
    def n_reused(self) -> int:
        return sum(turn.last_warm.n_reused for turn in self.good)

    def ttft_s(self, repeat: int) -> tuple[float, float]:
        """Cold and warm: the sum over the session's turns."""
        return sum(turn.cold[repeat].ttft_s for turn in self.good), sum(turn.warm[repeat].ttft_s for turn in self.good)

    def total_s(self, repeat: int) -> tuple[float, float]:
        return sum(turn.cold[repeat].total_s for turn in self.good), sum(
            turn.warm[repeat].total_s for turn in self.good
        )


@dataclass(frozen=True)
class Ratio:
    """Cold over warm, by pairs."""

    cold_s: float
    warm_s: float
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]]) -> Ratio:
        ratios = [cold / max(warm, 1e-9) for cold, warm in pairs] or [1.0]
        return cls(
            statistics.median(cold for cold, _ in pairs) if pairs else 0.0,
            statistics.median(warm for _, warm in pairs) if pairs else 0.0,
            statistics.median(ratios),
            min(ratios),
            max(ratios),
        )

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} .. {self.high:.2f})"


@dataclass(frozen=True)
class Report:
    sessions: tuple[SessionResult, ...]
    conditions: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, sessions: Sequence[Prepared], cold: Sequence[Pass], warm: Sequence[Pass], **conditions: Any) -> Report:
        results = []
        for prepared in sessions:
            turns = []
            for prompt in prepared.prompts:
                key = prompt.session, prompt.number
                turns.append(TurnResult(prompt, tuple(p[key] for p in cold), tuple(p[key] for p in warm)))
            results.append(SessionResult(prepared, tuple(turns), len(cold)))
        return cls(tuple(results), conditions)

    def ratio(self, sessions: Sequence[SessionResult], *, total: bool = False) -> Ratio:
        """Of the sums over sessions, repeat by repeat."""
        n_repeats = min((session.n_repeats for session in sessions), default=0)
        pairs = []
        for repeat in range(n_repeats):
            sums = [session.total_s(repeat) if total else session.ttft_s(repeat) for session in sessions]
            pairs.append((sum(cold for cold, _ in sums), sum(warm for _, warm in sums)))
        return Ratio.of(pairs)

    @property
    def failures(self) -> list[str]:
        return [
            f"{session.name} turn {turn.prompt.number}: {served.failure}"
            for session in self.sessions
            for turn in session.turns
            for served in (*turn.cold, *turn.warm)
            if not served.ok
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "conditions": self.conditions,
            "sessions": [self._session_json(session) for session in self.sessions],
            "ttft_speedup": self.ratio(self.sessions).__dict__,
            "total_speedup": self.ratio(self.sessions, total=True).__dict__,
            "failures": self.failures,
        }

    def _session_json(self, session: SessionResult) -> dict[str, Any]:
        prepared = session.prepared
        return {
            "name": session.name,
            "client": prepared.session.client,
            "n_too_long": prepared.n_too_long,
            "n_unrendered": prepared.n_unrendered,
            "left_out": dict(prepared.session.left_out),
            "ttft_speedup": self.ratio([session]).__dict__,
            "total_speedup": self.ratio([session], total=True).__dict__,
            "turns": [_turn_json(turn) for turn in session.turns],
        }


def _turn_json(turn: TurnResult) -> dict[str, Any]:
    warm = turn.last_warm
    return {
        "number": turn.prompt.number,
        "kind": turn.prompt.kind,
        "n_prompt": warm.n_prompt,
        "n_reused": warm.n_reused,
        "tier": warm.tier,
        "miss": warm.miss,
        "n_answer": len(warm.tokens),
        "cold_ttft_s": [served.ttft_s for served in turn.cold],
        "warm_ttft_s": [served.ttft_s for served in turn.warm],
        "cold_total_s": [served.total_s for served in turn.cold],
        "warm_total_s": [served.total_s for served in turn.warm],
        "speedup": turn.speedup,
        "same_tokens": turn.same_tokens,
        "parted_at": turn.parted_at,
        "failures": [served.failure for served in (*turn.cold, *turn.warm) if not served.ok],
    }


# For people


def print_report(report: Report, console: Console, *, each_turn: bool = True) -> None:
    if each_turn:
        for session in report.sessions:
            console.print(_turn_table(session))
    console.print(_session_table(report))
    for session in report.sessions:
        for line in _remarks(session.prepared):
            console.print(f"{session.name}: {line}", highlight=False, markup=False)
    n_resumes = sum(s.n_resumes for r in report.sessions for t in r.turns for s in (*t.cold, *t.warm))
    if n_resumes:
        console.print(
            f"an engine was lost {n_resumes} times: the times are those of the ones after it", highlight=False
        )
    for failure in report.failures:
        console.print(f"failed: {failure}", highlight=False, markup=False)


def _turn_table(session: SessionResult) -> Table:
    title = f"{session.name} ({session.prepared.session.client}): first tokens"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for name in ("turn", "prompt", "new", "reused", "cold, ms", "warm, ms", "faster"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("kind", "tier", "why not more", "tokens"):
        table.add_column(name, no_wrap=True)
    for turn in session.turns:
        warm = turn.last_warm
        if not turn.ok:
            table.add_row(str(turn.prompt.number), f"{warm.n_prompt:,}", *["-"] * 5, turn.prompt.kind, "failed", "", "")
            continue
        table.add_row(
            str(turn.prompt.number), f"{warm.n_prompt:,}", f"{warm.n_prompt - warm.n_reused:,}", f"{warm.n_reused:,}",
            f"{turn.cold_ttft_s * 1e3:.1f}", f"{turn.warm_ttft_s * 1e3:.1f}", f"{turn.speedup:.1f}",
            turn.prompt.kind, warm.tier, warm.miss, "same" if turn.same_tokens else "differ",
        )  # fmt: skip
    return table


def _session_table(report: Report) -> Table:
    title = "Sums of each session's first tokens, cold over warm: median (range); whole answers likewise"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for name in ("session", "turns", "prompt", "reused", "cold, s", "warm, s", "faster", "whole answers"):
        table.add_column(name, justify="left" if name == "session" else "right", no_wrap=True)
    rows = [(session.name, [session]) for session in report.sessions]
    if len(rows) > 1:
        rows.append(("all", list(report.sessions)))
    for name, sessions in rows:
        n_prompt, n_reused = sum(s.n_prompt for s in sessions), sum(s.n_reused for s in sessions)
        ratio = report.ratio(sessions)
        table.add_row(
            name, str(sum(len(s.good) for s in sessions)), f"{n_prompt:,}", f"{n_reused / max(n_prompt, 1):.0%}",
            f"{ratio.cold_s:.3f}", f"{ratio.warm_s:.3f}", str(ratio), str(report.ratio(sessions, total=True)),
        )  # fmt: skip
    return table


def _remarks(prepared: Prepared) -> list[str]:
    """What of a transcript was not replayed."""
    remarks = []
    if prepared.session.left_out:
        counts = ", ".join(f"{count} {what}" for what, count in sorted(prepared.session.left_out.items()))
        remarks.append(f"left out: {counts}")
    if prepared.n_too_long:
        remarks.append(f"{prepared.n_too_long} turns behind the end of the context (--ctx)")
    if prepared.n_unrendered:
        remarks.append(f"{prepared.n_unrendered} turns that the chat template refuses: {prepared.template_error}")
    return remarks
