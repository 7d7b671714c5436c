"""The conversations that a server remembers, of what its /memory.json says: each a way through the tree of texts to an
end of it. Where their pages lie, and what reading them again would cost. Pure; knows rich, asks nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

MOST_SHOWN = 12
_BAR_CELLS = 12
_TIERS = (("device", "green"), ("host", "blue"), ("disk", "magenta"))


@dataclass(frozen=True, slots=True)
class Conversation:
    words: str
    """How its last part begins: what it begins with, others may begin with as well."""
    n_tokens: int
    n_shared: int
    """Of these, tokens that other conversations begin with too."""
    n_pages: tuple[int, int, int]
    """Whose nearest copy lies in the device, in the host's memory, on disk."""
    age_s: float | None
    read_s: float | None
    """What reading all of it again would take."""
    n_lanes: int
    is_held: bool


def conversations(memory: Mapping[str, Any]) -> list[Conversation]:
    """Those that were used last come first."""
    found = [one for engine in memory["engines"] for one in _of_engine(engine, memory["read_s"])]
    return sorted(found, key=lambda one: float("inf") if one.age_s is None else one.age_s)


def _of_engine(engine: Mapping[str, Any], read_s: float | None) -> Iterator[Conversation]:
    runs = {run["page"]: run for run in engine["runs"]}
    parents = {run["parent"] for run in runs.values()}
    for run in runs.values():
        if run["page"] in parents:
            continue
        way = [run]
        while (before := runs.get(way[-1]["parent"])) is not None:
            way.append(before)
        nearest = [_nearest(part, engine["page_tokens"]) for part in way]
        device, host, disk = (sum(counts) for counts in zip(*nearest, strict=True))
        yield Conversation(
            words=run["words"],
            n_tokens=run["end"],
            n_shared=run["begin"],
            n_pages=(device, host, disk),
            age_s=run["age_s"],
            read_s=None if read_s is None else run["end"] * read_s,
            n_lanes=run["n_lanes"],
            is_held=run["is_held"],
        )


def _nearest(run: Mapping[str, Any], page_tokens: int) -> tuple[int, int, int]:
    """A page may lie in several places: it counts in the nearest."""
    n_pages = (run["end"] - run["begin"]) // page_tokens
    device = min(run["n_device"], n_pages)
    host = min(run["n_host"], n_pages - device)
    return device, host, min(run["n_disk"], n_pages - device - host)


def conversation_table(found: Sequence[Conversation]) -> RenderableType:
    if not found:
        return Text("no conversation of a page or more is remembered", "dim")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True)
    for name in ("used", "tokens", "shared", "read again"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("lies in", no_wrap=True)
    table.add_column("conversation", no_wrap=True, overflow="ellipsis", ratio=1)
    for one in found[:MOST_SHOWN]:
        used = "now" if one.n_lanes else "" if one.age_s is None else f"{_span(one.age_s)} ago"
        cost = "" if one.read_s is None else _span(one.read_s)
        words = Text(("… " if one.n_shared else "") + " ".join(one.words.split()))
        if one.is_held:
            words = Text.assemble(("pinned ", "bold"), words)
        table.add_row(used, f"{one.n_tokens:,}", f"{one.n_shared:,}", cost, _places(one), words)
    n_more = len(found) - MOST_SHOWN
    return Group(table, Text(f"{n_more:,} more", "dim")) if n_more > 0 else table


def _places(one: Conversation) -> Text:
    """A bar, and the names of what it shows."""
    text, n_drawn, so_far = Text(), 0, 0
    all_pages = max(sum(one.n_pages), 1)
    for (_, style), n_pages in zip(_TIERS, one.n_pages, strict=True):
        so_far += n_pages
        up_to = round(so_far / all_pages * _BAR_CELLS)
        text.append("█" * (up_to - n_drawn), style)
        n_drawn = up_to
    text.append("░" * (_BAR_CELLS - n_drawn), "dim")
    for (name, style), n_pages in zip(_TIERS, one.n_pages, strict=True):
        if n_pages:
            text.append(f" {name} {n_pages:,}", style)
    return text


def _span(seconds: float) -> str:
    for limit, unit_s, unit in ((1, 0.001, "ms"), (120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"
