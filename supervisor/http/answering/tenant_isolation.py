"""TenantIsolation: how much of a text a client may be served from memory, where clients are kept apart. Pure.

An engine's memory knows texts, not whose they are, and how fast it was tells that somebody has sent a text. So of each
request only so much is looked up there as the client itself has sent or been answered before, or as belongs to a text
that is common to all. Nothing that others have sent plays a part in that, so nobody learns of it: neither from what is
fast nor from what is slow.

What is known of clients' texts is bounded. Of the client that has most the longest unused go first; it reads those
again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from luce.supervisor.prefix_cache.prefix_index import PrefixIndex, pack

MAX_TOKENS = 16_000_000


@dataclass(eq=False, slots=True)
class _Client:
    index: PrefixIndex[bool] = field(default_factory=PrefixIndex)
    order: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    """The longest unused first."""


class TenantIsolation:
    def __init__(self, common: Sequence[Sequence[int]] = (), max_tokens: int = MAX_TOKENS) -> None:
        """`common`: beginnings of texts that anybody may be served from memory."""
        self._max_tokens = max_tokens
        self._common: PrefixIndex[bool] = PrefixIndex()
        for text in common:
            self._common.insert(pack(text), True)
        self._clients: dict[str, _Client] = {}
        self.n_forgotten = 0
        """Texts of which no client is served any more."""

    def begin(self, client: str, prompt: Sequence[int]) -> int:
        """How many of the prompt's tokens may come from memory. It counts as sent from here on."""
        key = pack(prompt)
        n_own = self._of(client).index.n_common(key)
        self._note(client, key)
        return max(n_own, self._common.n_common(key))

    def end(self, client: str, prompt: Sequence[int], answers: Sequence[Sequence[int]]) -> None:
        for answer in answers:
            self._note(client, pack(prompt) + pack(answer))

    @property
    def n_tokens(self) -> int:
        return sum(client.index.n_tokens for client in self._clients.values())

    def _of(self, client: str) -> _Client:
        return self._clients.setdefault(client, _Client())

    def _note(self, name: str, key: bytes) -> None:
        client = self._of(name)
        client.index.insert(key, True)
        client.order[key] = None
        client.order.move_to_end(key)
        n_tokens = self.n_tokens
        while n_tokens > self._max_tokens:
            largest_name, largest = max(self._clients.items(), key=lambda item: item[1].index.n_tokens)
            oldest, _ = largest.order.popitem(last=False)
            n_before = largest.index.n_tokens
            largest.index.remove(oldest)
            n_tokens -= n_before - largest.index.n_tokens
            if not largest.order:
                del self._clients[largest_name]
            self.n_forgotten += 1
