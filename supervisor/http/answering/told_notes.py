"""What is told beside an answer, in its headers: noted by whoever answers, collected for the request at work.

Goes with the request's context, as its record does. Knows no headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from luce.supervisor.http.prompts.enforced_schemas import AppliedNote

Notes = dict[AppliedNote, None]

_CURRENT: ContextVar[Notes | None] = ContextVar("TOLD_NOTES", default=None)


@contextmanager
def collected_notes() -> Iterator[Notes]:
    """Around the request."""
    notes: Notes = {}
    token = _CURRENT.set(notes)
    try:
        yield notes
    finally:
        _CURRENT.reset(token)


def tell_notes(notes: Iterable[AppliedNote]) -> None:
    if (current := _CURRENT.get()) is not None:
        current.update(dict.fromkeys(notes))
