"""ShownLogprobs: which tokens, and how much of each, are the content of an answer.

A parser takes marks, reasoning and calls out of what the model writes, and stop strings cut it off. So the content is
found again in the tokens' bytes, piece by piece in their order: the entries' bytes join to the content. Knows no
format.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from luce.supervisor.http.answering.answer_events import TokenLogprob

logger = logging.getLogger("luce.http")


@dataclass(slots=True)
class _Written:
    """A token that the model has written."""

    entry: TokenLogprob
    left: bytes
    """What of it is not dealt with yet."""
    shown: bytes = b""
    """What of it is content."""


class ShownLogprobs:
    def __init__(self, *, keeps_all: bool) -> None:
        """`keeps_all`: each token has an entry, if one without bytes; else only those of which something is shown."""
        self._keeps_all = keeps_all
        self._written: deque[_Written] = deque()
        self._done: list[TokenLogprob] = []
        self._has_moved = False
        """Something else than content came last: marks may stand before what comes now."""
        self._has_lost = False

    def write(self, entry: TokenLogprob) -> None:
        """The answer's next token."""
        self._written.append(_Written(entry, entry.chosen.bytes))

    def end(self, entry: TokenLogprob) -> None:
        """A token that ends the answer and is no text."""
        self._written.append(_Written(entry, b""))

    def show(self, text: str) -> Sequence[TokenLogprob]:
        """The content has grown by this: the entries that are whole now."""
        shown = text.encode("utf-8", "replace")
        place = self._find(shown)
        self._has_moved = False
        if place is None:  # half a character, say, that the content has another sign for
            if shown and not self._has_lost and "\N{REPLACEMENT CHARACTER}" not in text:
                self._has_lost = True
                logger.info("content that its tokens do not spell: it has the log-probabilities of all of them")
            for written in self._written:
                written.shown, written.left = written.shown + written.left, b""
        else:
            self._skip(place)
            self._mark_shown(len(shown))
        return self._take()

    def pass_over(self, text: str | None) -> None:
        """Something else has come: reasoning of this text, or what is not written as it is shown."""
        self._has_moved = True
        place = None if text is None else self._find(text.encode("utf-8", "replace"))
        if text is not None and place is not None:
            self._skip(place + len(text.encode("utf-8", "replace")))
        else:  # the token that ended it may begin what comes next
            self._skip(sum(len(written.left) for written in list(self._written)[:-1]))

    def finish(self) -> Sequence[TokenLogprob]:
        """Nothing more is shown."""
        for written in self._written:
            written.left = b""
        return self._take()

    def _find(self, shown: bytes) -> int | None:
        """Where it begins in what is left of the tokens."""
        left = b"".join(written.left for written in self._written)
        if not self._has_moved and left.startswith(shown):
            return 0
        if left.endswith(shown):
            return len(left) - len(shown)
        place = left.rfind(shown)
        return None if place < 0 else place

    def _skip(self, n: int) -> None:
        for written in self._written:
            n_here = min(n, len(written.left))
            written.left = written.left[n_here:]
            n -= n_here
            if n == 0:
                return

    def _mark_shown(self, n: int) -> None:
        for written in self._written:
            n_here = min(n, len(written.left))
            written.shown += written.left[:n_here]
            written.left = written.left[n_here:]
            n -= n_here

    def _take(self) -> Sequence[TokenLogprob]:
        taken: list[TokenLogprob] = []
        while self._written and not self._written[0].left:
            written = self._written.popleft()
            if written.shown or self._keeps_all:
                taken.append(replace(written.entry, chosen=replace(written.entry.chosen, bytes=written.shown)))
        self._done += taken
        return tuple(taken)

    @property
    def all(self) -> Sequence[TokenLogprob]:
        """Since the beginning."""
        return tuple(self._done)
