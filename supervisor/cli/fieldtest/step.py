"""Step: one measurement of a field test, with what it does and how much. A part is a list of them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from luce.supervisor.checking.workload import Work


class LeftOutError(Exception):
    """The rest of this part cannot be measured with this model or these options; the text says why."""


@dataclass(frozen=True, slots=True)
class Step:
    part: str
    text: str
    """What it measures."""
    work: Work
    """About so much: how long that takes is the machine's."""
    do: Callable[[], str]
    """Returns what was found, in few words. Raises LeftOutError, ServerError, or click's Exit where a server does not
    start."""
