"""Single values that only commands have. Knows no key and no command."""

from __future__ import annotations

from luce.protocol.scalar_values import RefusedError, parse_count, shortened


def parse_placed_count(name: str, word: bytes | None) -> int:
    """A word that a command knows by its place; nothing if the line ends before it."""
    if word is None:
        raise RefusedError(f"{name} is missing")
    try:
        return parse_count(word)
    except RefusedError as refusal:
        raise RefusedError(f"{name} '{shortened(word)}' {refusal.text}") from None


def parse_flag(text: bytes) -> bool:
    if text not in (b"0", b"1"):
        raise RefusedError("must be 0 or 1")
    return text == b"1"
