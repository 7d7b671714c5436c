"""From tokens to text as they come: UTF-8 sequences that end in a later token, stop strings that lie over several.

Pure: knows no vocabulary, only bytes.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable
from dataclasses import dataclass


class Detokenizer:
    """Tokens in, text out. What is not yet a whole UTF-8 sequence waits for the next token; what never becomes one
    comes out as U+FFFD, as everywhere in Python."""

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        return self._decoder.decode(self._piece(token))

    def finish(self) -> str:
        """The rest: empty, or U+FFFD for a sequence that was cut off."""
        return self._decoder.decode(b"", final=True)


@dataclass(frozen=True)
class StopMatch:
    """A stop string that was found, and the text after it, which is not part of the answer."""

    stop: str
    rest: str


class StopStrings:
    """Finds the first stop string in a text that comes in pieces.

    Text that could be the prefix of a stop string waits, and nothing else does. Of stops that begin at the same
    place the longer wins if it was complete by then.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop != ""))
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.match: StopMatch | None = None

    def feed(self, text: str) -> str:
        """The text that is certainly part of the answer. After a match (see `match`) nothing more is."""
        if self.match is not None:
            return ""
        text = self._held + text
        found = [(at, -len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, _, stop = min(found)
            self.match = StopMatch(stop, text[at + len(stop) :])
            self._held = ""
            return text[:at]
        held = self._n_possible(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """What waited, when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _n_possible(self, text: str) -> int:
        """How many characters at the end are the prefix of a stop string; the most, if several are."""
        for n in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[len(text) - n :]
            if any(len(stop) > n and stop.startswith(end) for stop in self._stops):
                return n
        return 0
