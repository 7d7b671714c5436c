"""What a schema asks for and does not get, told: the place, the keyword, and why. Plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchemaNote:
    """A keyword that is not enforced."""

    pointer: str
    """JSON pointer of the schema that holds the keyword; empty: the whole schema."""
    keyword: str
    reason: str


class Never(Exception):  # noqa: N818 - no error: a value that cannot exist
    """No value fits. `is_meant`: the schema says so by itself (`false`), it does not contradict itself."""

    def __init__(self, keyword: str, reason: str, *, is_meant: bool = False) -> None:
        super().__init__(reason)
        self.keyword = keyword
        self.reason = reason
        self.is_meant = is_meant


class UnsupportedError(ValueError):
    """A keyword's value has no exact grammar; the text says why."""
