"""What an engine tells of its pages as they come, go and change their place (`[pages]`), as values.

Pure: words in, values out. The protocol's words for it are in PROTOCOL.md.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import StrEnum

from luce.protocol import RemoteProtocolError


class Tier(StrEnum):
    DEVICE = "r"
    HOST = "h"
    DISK = "d"


@dataclass(frozen=True, slots=True)
class PageText:
    parent: bytes | None
    """The name of the page before it; None: a text begins with it."""
    tokens: array[int]


@dataclass(frozen=True, slots=True)
class PageChange:
    name: bytes
    tiers: frozenset[Tier]
    """Where its rows lie now; none: it is gone."""
    text: PageText | None = None
    """Of a page that the engine has not told of, or has told to be gone."""


def parse_change(text: str) -> PageChange:
    """Words that a newer engine adds are passed over. Raises RemoteProtocolError."""
    name, _, rest = text.partition(":")
    tiers, has_text, rest = rest.partition(":")
    try:
        known = frozenset(Tier(tier) for tier in tiers)
        if not has_text:
            return PageChange(bytes.fromhex(name), known)
        parent, tokens, *_ = rest.split(":")
        page_text = PageText(bytes.fromhex(parent) or None, array("I", map(int, tokens.split("+"))))
        return PageChange(bytes.fromhex(name), known, page_text)
    except (ValueError, OverflowError) as error:
        raise RemoteProtocolError(f"a page told as {text[:80]!r}: {error}") from None
