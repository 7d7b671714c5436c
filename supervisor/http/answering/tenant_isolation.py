"""TenantIsolation: which prefixes of a text a client may be served from memory, where clients are kept apart. Pure.

An engine's memory knows texts, not whose they are: it goes on from whatever prefix it has, and how fast it was tells
that somebody has sent it. So a request may look for its prefix there only if nobody else's text goes on further with
it than this client's own do: then whatever is found, the client itself has sent or been answered.

Everybody's texts have to be known for that, as long as the engine may remember them. When there is no room for more,
nothing is taken from memory any more: slow, but nobody learns of others.
"""

from __future__ import annotations

from collections.abc import Sequence

from luce.supervisor.prefix_cache.prefix_index import TOKEN_BYTES, PrefixIndex, common_tokens, pack

MAX_TOKENS = 16_000_000


class TenantIsolation:
    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._all: PrefixIndex[bool] = PrefixIndex()
        self._own: dict[str, PrefixIndex[bool]] = {}
        self._running: dict[object, tuple[str, bytes]] = {}
        self.is_full = False
        """More has been sent than is remembered here."""

    def begin(self, request: object, client: str, prompt: Sequence[int]) -> bool:
        """Whether this prompt may be served from memory. Its text counts as sent from here on, and what is answered
        as the client's, until `end`."""
        key = pack(prompt)
        n_own = self._of(client).n_common(key)
        is_own = not self.is_full and self._all.n_common(key) <= n_own and not self._goes_on_with_others(client, key)
        self._note(client, key)
        self._running[request] = (client, key)
        return is_own

    def end(self, request: object, answers: Sequence[Sequence[int]]) -> None:
        client, key = self._running.pop(request)
        for answer in answers:
            self._note(client, key + pack(answer))

    def _of(self, client: str) -> PrefixIndex[bool]:
        return self._own.setdefault(client, PrefixIndex())

    def _goes_on_with_others(self, client: str, key: bytes) -> bool:
        """Whether the text goes on where somebody else's answer is just being written: nobody knows how far."""
        return any(
            other != client and common_tokens(theirs, key) * TOKEN_BYTES == len(theirs)
            for other, theirs in self._running.values()
        )

    def _note(self, client: str, key: bytes) -> None:
        if self.is_full:
            return
        self._all.insert(key, True)
        self._of(client).insert(key, True)
        if self._all.n_tokens > self._max_tokens:
            self.is_full = True
            self._all, self._own = PrefixIndex(), {}
