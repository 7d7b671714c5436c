"""What an engine remembers, as it tells it: runs of pages between two places where texts branch.

Pure: words in, values out. The engine names a run by its last page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MAX_TEXTS = 2048
"""So many runs at most are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRun:
    page: str
    parent: str | None
    begin: int
    end: int
    """Tokens of the text before it, and with it."""
    n_device: int
    n_host: int
    n_disk: int
    n_pinned: int
    """Pages, by where they lie; one may lie in several places."""
    n_checkpoints: int
    n_lanes: int
    is_held: bool
    age_s: int | None
    first_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TextListing:
    n_runs: int
    """Of all; as many as MAX_TEXTS are here."""
    n_short: int
    """Texts of less than a page."""
    runs: tuple[TextRun, ...]


def parse_listing(fields: Mapping[str, str]) -> TextListing:
    """Of a `[texts]` line. Raises ValueError."""
    texts = fields.get("texts", "")
    runs = tuple(_parse_run(text) for text in texts.split(",")) if texts else ()
    return TextListing(int(fields.get("total", "0")), int(fields.get("short", "0")), runs)


def _parse_run(text: str) -> TextRun:
    """Words that a newer engine adds are passed over."""
    page, parent, begin, end, device, host, disk, pinned, checkpoints, lanes, held, age, tokens, *_ = text.split(":")
    return TextRun(
        page=page,
        parent=parent or None,
        begin=int(begin),
        end=int(end),
        n_device=int(device),
        n_host=int(host),
        n_disk=int(disk),
        n_pinned=int(pinned),
        n_checkpoints=int(checkpoints),
        n_lanes=int(lanes),
        is_held=held == "1",
        age_s=int(age) if age else None,
        first_tokens=tuple(map(int, tokens.split("+"))) if tokens else (),
    )
