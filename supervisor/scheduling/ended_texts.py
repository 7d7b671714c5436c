"""EndedTexts: the texts of requests that have ended on an engine lately, by their beginnings: it can still write them
down. Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from luce.supervisor.prefix_cache.prefix_index import Match, PrefixIndex

_MAX_ENDED = 64
"""So many requests an engine remembers after their end."""


@dataclass(frozen=True, slots=True)
class KnownText:
    """The beginning of a text that an engine can write down without computing."""

    n_tokens: int
    n_bytes: int
    """About."""
    of: int | None
    """The ended request whose text it is; None: a slot has it."""
    slot: int | None


class EndedTexts:
    def __init__(self) -> None:
        self._requests: PrefixIndex[int] = PrefixIndex()
        self._keys: deque[bytes] = deque()

    def note(self, key: bytes, request_id: int) -> None:
        """`key`: all that was computed of it."""
        if self._requests.get(key) is None:
            self._keys.append(key)
        self._requests.insert(key, request_id)
        if len(self._keys) > _MAX_ENDED:
            self._requests.remove(self._keys.popleft())

    def longest(self, key: bytes) -> Match[int] | None:
        """The request with the longest text that is a beginning of `key`."""
        return next(iter(self._requests.matches(key)), None)

    def clear(self) -> None:
        self._requests = PrefixIndex()
        self._keys.clear()
