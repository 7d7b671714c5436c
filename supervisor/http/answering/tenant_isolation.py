"""TenantIsolation: which prefixes of a text a client may be served from memory, where clients are kept apart. Pure.

An engine's memory knows texts, not whose they are: it goes on from whatever prefix it has, and how fast it was tells
that somebody has sent it. So a request may look for its prefix there only if nobody else's text goes on further with
it than this client's own do: then whatever is found, the client itself has sent or been answered.

Everybody's texts have to be known for that, as long as the engine may remember them. When there is no room for more,
those of the client that has most are shortened, the longest unused first: what is kept is where they part from all
others and a little more; then, if there are too many of these, where they part from the texts of other clients. A text
that goes on there is taken for known to their owner alone. So who sends much loses none of its own reuse, and takes
from others only what goes on just as its texts do.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from luce.supervisor.prefix_cache.prefix_index import TOKEN_BYTES, PrefixIndex, common_tokens, pack

MAX_TOKENS = 16_000_000
_KEPT_TOKENS = 16  # of a shortened text, behind what it has in common with others
_KEPT_OF_MANY = 1  # behind what it has in common with other clients', where shortened ones are too many

_log = logging.getLogger("luce.http.answering")


@dataclass(eq=False, slots=True)
class _Text:
    owners: set[str] = field(default_factory=set)
    shortened: set[str] = field(default_factory=set)
    """Of these, whose text went on from here: nobody knows any more how."""


@dataclass(eq=False, slots=True)
class _Client:
    index: PrefixIndex[bool] = field(default_factory=PrefixIndex)
    whole: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    """The longest unused first."""
    short: set[bytes] = field(default_factory=set)
    """What is left of others, and can be shortened further."""
    is_said: bool = False


class TenantIsolation:
    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._all: PrefixIndex[_Text] = PrefixIndex()
        self._clients: dict[str, _Client] = {}
        self._running: dict[object, tuple[str, bytes]] = {}
        self.n_shortened = 0
        """Texts of which a part has been forgotten."""
        self.is_full = False
        """There is no room even for shortened texts: nothing is taken from memory any more. Slow, but nobody learns of
        others."""

    def begin(self, request: object, client: str, prompt: Sequence[int]) -> bool:
        """Whether this prompt may be served from memory. Its text counts as sent from here on, and what is answered
        as the client's, until `end`."""
        key = pack(prompt)
        n_own = self._of(client).index.n_common(key)
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

    def _of(self, client: str) -> _Client:
        return self._clients.setdefault(client, _Client())

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
        whole = self._of(client).whole
        whole[key] = None
        whole.move_to_end(key)
        while self._all.n_tokens > self._max_tokens:
            largest_first = sorted(self._clients, key=lambda name: self._clients[name].index.n_tokens, reverse=True)
            if not any(map(self._make_room, largest_first)):
                self._give_up()
                return

    def _make_room(self, name: str) -> bool:
        """Whether anything has been done."""
        client = self._clients[name]
        if client.whole:
            text, _ = client.whole.popitem(last=False)
            n_unshared = self._all.n_exclusive(text)
            client.short.add(self._shorten(name, text, len(text) - (n_unshared - _KEPT_TOKENS) * TOKEN_BYTES))
            return True
        n_before = self._all.n_tokens
        for text in client.short:
            self._shorten(name, text, (self._n_others(name, text) + _KEPT_OF_MANY) * TOKEN_BYTES)
        client.short.clear()  # there is nothing more to forget of them
        is_less = self._all.n_tokens < n_before
        if is_less and not client.is_said:
            client.is_said = True
            _log.warning(
                "too many texts of one client (%s): others are not served from memory where theirs begin as its do",
                name[:12] or "without a key",
            )
        return is_less

    def _give_up(self) -> None:
        self.is_full = True
        self._all, self._clients = PrefixIndex(), {}
        _log.warning("too many texts of clients that are kept apart: none is served from memory from now on")

    def _n_others(self, name: str, text: bytes) -> int:
        """How far any other client's texts go with it."""
        others = (client.index.n_common(text) for other, client in self._clients.items() if other != name)
        return max(others, default=0)

    def _insert(self, client: str, key: bytes) -> _Text:
        self._of(client).index.insert(key, True)
        text = self._all.get(key)
        if text is None:
            text = _Text()
            self._all.insert(key, text)
        text.owners.add(client)
        return text

    def _shorten(self, name: str, key: bytes, n_kept: int) -> bytes:
        """To so many bytes. Returns what is left."""
        if n_kept >= len(key):
            return key
        client, text = self._clients[name], self._all.get(key)
        assert text is not None
        text.owners.discard(name)
        text.shortened.discard(name)
        client.index.remove(key)
        client.whole.pop(key, None)
        if not text.owners:
            self._all.remove(key)
        self._insert(name, key[:n_kept]).shortened.add(name)
        self.n_shortened += 1
        return key[:n_kept]
