"""ReadingSpeed: what reading a token of a prompt takes a replica, and how long its requests take, as they have been of
late. Pure.
"""

from __future__ import annotations

from luce.supervisor.requests import FinishedEvent

_LEAST_TOKENS = 32  # fewer say more of the step than of reading
_SHARE = 0.1


class ReadingSpeed:
    def __init__(self) -> None:
        self.read_s: float | None = None
        """A token; None: nothing was read yet."""
        self.answer_s: float | None = None

    def note(self, finished: FinishedEvent, took_s: float) -> None:
        n_read = (finished.n_prompt if finished.n_read is None else finished.n_read) - finished.n_reused
        if n_read >= _LEAST_TOKENS and finished.n_resumes == 0:
            self.read_s = _mixed(self.read_s, finished.prefill_s / n_read)
        self.answer_s = _mixed(self.answer_s, took_s)


def _mixed(before: float | None, value: float) -> float:
    return value if before is None else before + _SHARE * (value - before)
