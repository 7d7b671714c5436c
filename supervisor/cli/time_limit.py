"""Ends what runs in the main thread once its time is up, also where it waits: as Ctrl-C does, by a signal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_AT_ONCE_S = 1e-6  # 0 would be no limit


class TimeIsUp(BaseException):
    """As KeyboardInterrupt: no `except Exception` is to take it for an error."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raises TimeIsUp within the block. None: no limit."""
    if seconds is None:
        yield
        return

    def end(*_: Any) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, _AT_ONCE_S))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
