"""TenantIsolation: which prefixes of a text a client may be served from memory, where clients are kept apart. Pure.

An engine's memory knows texts, not whose they are: it goes on from whatever prefix it has, and how fast it was tells
that somebody has sent it. So a request may look for its prefix there only if nobody else's text goes on further with
it than this client's own do: then whatever is found, the client itself has sent or been answered.

Everybody's texts have to be known for that, as long as the engine may remember them. When there is no room for more,
the longest unused ones are shortened: what is kept is where they part from all others and a little more. A text that
goes on there is taken for known to their owners alone.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from luce.supervisor.prefix_cache.prefix_index import TOKEN_BYTES, PrefixIndex, common_tokens, pack

MAX_TOKENS = 16_000_000
_KEPT_TOKENS = 16  # of a shortened text, behind what it has in common with others

_log = logging.getLogger("luce.http.answering")


@dataclass(eq=False, slots=True)
class _Text:
    owners: set[str] = field(default_factory=set)
    shortened: set[str] = field(default_factory=set)
    """Of these, whose text went on from here: nobody knows any more how."""


class TenantIsolation:
    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._all: PrefixIndex[_Text] = PrefixIndex()
        self._own: dict[str, PrefixIndex[bool]] = {}
        self._whole: OrderedDict[tuple[str, bytes], None] = OrderedDict()  # the longest unused first
        self._running: dict[object, tuple[str, bytes]] = {}
        self.is_full = False
        """There is no room even for shortened texts: nothing is taken from memory any more. Slow, but nobody learns of
        others."""

    def begin(self, request: object, client: str, prompt: Sequence[int]) -> bool:
        """Whether this prompt may be served from memory. Its text counts as sent from here on, and what is answered
        as the client's, until `end`."""
        key = pack(prompt)
        n_own = self._of(client).n_common(key)
        is_own = not self.is_full and self._all.n_common(key) <= n_own and not self._may_be_others(client, key)
        self._note(client, key)
        self._running[request] = (client, key)
        return is_own

    def end(self, request: object, answers: Sequence[Sequence[int]]) -> None:
        client, key = self._running.pop(request)
        for answer in answers:
            self._note(client, key + pack(answer))

    @property
    def n_tokens(self) -> int:
        return self._all.n_tokens

    def _of(self, client: str) -> PrefixIndex[bool]:
        return self._own.setdefault(client, PrefixIndex())

    def _may_be_others(self, client: str, key: bytes) -> bool:
        """Whether the text goes on where somebody else's was shortened, or an answer of theirs is just being written:
        nobody knows how far."""
        if any(match.value.shortened - {client} for match in self._all.matches(key)):
            return True
        return any(
            other != client and common_tokens(theirs, key) * TOKEN_BYTES == len(theirs)
            for other, theirs in self._running.values()
        )

    def _note(self, client: str, key: bytes) -> None:
        if self.is_full:
            return
        self._insert(client, key)
        self._whole[client, key] = None
        self._whole.move_to_end((client, key))
        while self._all.n_tokens > self._max_tokens:
            if not self._whole:
                self.is_full = True
                self._all, self._own = PrefixIndex(), {}
                _log.warning("too many texts of clients that are kept apart: none is served from memory from now on")
                return
            (owner, text), _ = self._whole.popitem(last=False)
            self._shorten(owner, text)

    def _insert(self, client: str, key: bytes) -> _Text:
        self._of(client).insert(key, True)
        text = self._all.get(key)
        if text is None:
            text = _Text()
            self._all.insert(key, text)
        text.owners.add(client)
        return text

    def _shorten(self, client: str, key: bytes) -> None:
        n_kept = len(key) - (self._all.n_exclusive(key) - _KEPT_TOKENS) * TOKEN_BYTES
        if n_kept >= len(key):
            return
        text = self._all.get(key)
        assert text is not None
        text.owners.discard(client)
        self._own[client].remove(key)
        if not text.owners:
            self._all.remove(key)
        self._insert(client, key[:n_kept]).shortened.add(client)
