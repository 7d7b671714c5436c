"""Retries: the same request, sent again while the first one still runs.

A client that has lost patience sends its request anew, often before the old connection is seen to close. The newer one
takes the older one's place: in the queue, or in the middle of its prompt, so that nothing is computed twice. The older
one gets the newer one's place at the queue's end. If its client is gone it will leave before it is its turn; if it is
not, because two clients happen to ask the same, or a load test asks it 64 times, both are served.

So nobody is refused for having a twin, and no guess has to be made which of the two cases it is. A place changes hands
only as long as no token has come, after a short while (what comes at the same moment is no retry), and a request gives
its place away once at most, so that none waits for ever behind a stream of twins. Only where the queue has no room for
another does the older one have to go.

Knows submissions; no HTTP and no dialect.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from luce.supervisor.http.answering.answer_request import AnswerRequest
from luce.supervisor.service import Submission

logger = logging.getLogger("luce.http.answering")

_LEAST_AGE_S = 0.5
"""Clients' patience is 300 s and more; what is younger was sent by somebody else."""

_Key = tuple[str, str, str]


@dataclass(eq=False, slots=True)
class _Running:
    submissions: Sequence[Submission]
    began_s: float
    has_given: bool = False


class Retries:
    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._running: dict[_Key, list[_Running]] = {}

    def older(self, ask: AnswerRequest) -> Sequence[Submission] | None:
        """Of the oldest request like this one that can give its place away."""
        entry = self._giver(_key(ask))
        return None if entry is None else entry.submissions

    @contextmanager
    def running(self, ask: AnswerRequest, submissions: Sequence[Submission]) -> Iterator[None]:
        """While it runs, after it has taken the place of one before it."""
        key = _key(ask)
        if key is None:
            yield
            return
        older = self._giver(key)
        if older is not None:
            older.has_given = True
            for mine, theirs in zip(submissions, older.submissions, strict=True):
                mine.exchange(theirs)
            logger.info("a request that was sent again goes on where the first one was")
        entry = _Running(submissions, self._now_s())
        self._running.setdefault(key, []).append(entry)
        try:
            yield
        finally:
            entries = self._running[key]
            entries.remove(entry)
            if not entries:
                del self._running[key]

    def _giver(self, key: _Key | None) -> _Running | None:
        if key is None:
            return None
        latest_s = self._now_s() - _LEAST_AGE_S
        return next(
            (
                entry
                for entry in self._running.get(key, ())
                if not entry.has_given
                and entry.began_s <= latest_s
                and all(submission.is_silent for submission in entry.submissions)
            ),
            None,
        )


def _key(ask: AnswerRequest) -> _Key | None:
    return (ask.client, ask.session, ask.fingerprint) if ask.fingerprint else None
