"""What `luce top` shows of a server: a picture of one look, and of what changed since the one before. Knows rich; asks
nobody, keeps no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from luce.supervisor.cli.numbers import format_bytes
from luce.supervisor.cli.watching.conversations import Conversation, conversation_table
from luce.supervisor.cli.watching.speeds import Speeds, Status

NOT_KNOWN = "–"  # noqa: RUF001
_BARS = "▁▂▃▄▅▆▇█"
_BAR_CELLS = 20
_STYLES = {"running": "green", "out": "magenta", "kept": "blue", "pages": "blue", "tails": "cyan", "files": "blue"}
_WORDS = {
    "running": "of running texts",
    "kept": "remembered",
    "out": "of running texts, out of the pool",
    "pages": "remembered",
    "tails": "checkpoints",
    "files": "files",
}


def board(
    status: Status,
    found: Speeds,
    rates: Sequence[float],
    url: str,
    remembered: Sequence[Conversation] | str,
    trouble: str | None = None,
) -> RenderableType:
    """`rates`: tokens a second of the last looks, the newest last. `remembered`: why not, where a text. `trouble`: why
    there is no newer look."""
    parts: list[RenderableType] = [_head(status, url, trouble), _speeds(status, found, rates), _lanes(status, found)]
    parts += [_memory(engine) for engine in status["engines"] if engine["tiers"]]
    parts.append(Text(remembered, "dim") if isinstance(remembered, str) else conversation_table(remembered))
    return Group(*(part for pair in parts for part in (pair, "")))


def _head(status: Status, url: str, trouble: str | None) -> Text:
    text = Text.assemble((str(status["model"]), "bold"), f" at {url}")
    for engine in status["engines"]:
        figures = engine["figures"]
        up = f", up {_duration(figures['uptime_s'])}" if "uptime_s" in figures else ""
        style = "green" if engine["state"] == "ready" else "yellow"
        text.append("\n").append(f"{engine['name']} ").append(_state(engine), style).append(up)
        text.append(f", context {engine['ctx']:,} tokens" if engine["ctx"] is not None else "")
        text.append(f", speculation {engine['speculation']}" if engine["speculation"] != "none" else "")
        text.append(f", pinned prefixes {engine['slots_used']:,} of {engine['slots']:,}" if engine["slots"] else "")
        if engine["last_failure"] is not None:
            text.append(f"\ndied {engine['deaths']} times, the last time: {engine['last_failure']}", "red")
    if trouble is not None:
        text.append("\n").append(f"no newer figures: {trouble}", "bold red")
    return text


def _state(engine: Mapping[str, Any]) -> str:
    percent = engine["load_percent"]
    return f"{engine['state']} ({percent} %)" if percent is not None else str(engine["state"])


def _duration(seconds: float) -> str:
    minutes, hours = int(seconds) // 60 % 60, int(seconds) // 3600
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {int(seconds) % 60} s"


def _speeds(status: Status, found: Speeds, rates: Sequence[float]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    counts = status["requests"]
    generated = _number(found.generated_per_s)
    table.add_row("written", Text(f"{generated} tokens a second", "bold"), Text(_sparkline(rates), "green"))
    table.add_row("read", f"{_number(found.read_per_s)} tokens a second", _reused(found))
    table.add_row(
        "requests",
        f"{sum(len(engine['running']) for engine in status['engines'])} running, {status['waiting']} waiting",
        f"{counts['finished']:,} finished, {counts['failed']:,} failed, {counts['cancelled']:,} cancelled,"
        f" {counts['resumed']:,} times resumed",
    )
    return table


def _reused(found: Speeds) -> str:
    return "" if found.reused_share is None else f"{found.reused_share:.0%} of the prompts came from memory"


def _number(value: float | None) -> str:
    return NOT_KNOWN if value is None else f"{value:,.0f}"


def _sparkline(rates: Sequence[float]) -> str:
    most = max(rates, default=0.0)
    if most <= 0:
        return ""
    return "".join(_BARS[round(rate / most * (len(_BARS) - 1))] for rate in rates)


def _lanes(status: Status, found: Speeds) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("engine", "lane", "does", "prompt", "read", "written", "a second"):
        table.add_column(name, justify="left" if name in {"engine", "does"} else "right")
    for number, engine in enumerate(status["engines"]):
        lanes = found.lanes[number] if number < len(found.lanes) else ()
        for index, lane in enumerate(engine["running"]):
            speed = lanes[index] if index < len(lanes) else None
            does = "writes" if lane["n_generated"] else "reads"
            figures = (f"{lane['n_prompt']:,}", f"{lane['n_read']:,}", f"{lane['n_generated']:,}", _number(speed))
            table.add_row(engine["name"], str(index), does, *figures)
        if n_free := engine["lanes"] - len(engine["running"]):
            table.add_row(engine["name"], "", Text(f"{n_free} of {engine['lanes']} lanes free", "dim"))
    return table


def _memory(engine: Mapping[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(3):
        table.add_column(no_wrap=True)
    for tier in engine["tiers"]:
        table.add_row(tier["name"], _bar(tier), _room(tier), Text.assemble(*_parts(tier)))
    return table


def _bar(tier: Mapping[str, Any]) -> Text:
    if not tier["n_total"]:
        return Text(" " * _BAR_CELLS)
    bar, filled, so_far = Text(), 0, 0
    for part in tier["parts"]:
        so_far += part["n"]
        up_to = min(round(so_far / tier["n_total"] * _BAR_CELLS), _BAR_CELLS)
        bar.append("█" * (up_to - filled), _STYLES.get(part["kind"], ""))
        filled = up_to
    return bar.append("░" * (_BAR_CELLS - filled), "dim")


def _room(tier: Mapping[str, Any]) -> str:
    total = "" if tier["n_total"] is None else f", {tier['n_total']:,} pages"
    return f"{format_bytes(tier['bytes'])}{total}"


def _parts(tier: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for index, part in enumerate(tier["parts"]):
        kind = part["kind"]
        yield (f"{', ' if index else ''}{part['n']:,} {_WORDS.get(kind, kind)}", _STYLES.get(kind, ""))
