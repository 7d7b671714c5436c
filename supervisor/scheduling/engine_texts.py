"""EngineTexts: how much of a text one engine has, by the pages that it reports and by what it is reading; and which
texts of requests that have ended it can still write to a file. Pure.

Only where there are several engines does it matter which of them has a text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from luce.supervisor.prefix_cache.held_pages import HeldPages
from luce.supervisor.prefix_cache.page_names import PAGE_TOKENS, TOKEN_BYTES
from luce.supervisor.prefix_cache.prefix_index import Match, common_tokens

_MAX_ENDED = 64
"""So many requests an engine remembers after their end."""


@dataclass(frozen=True, slots=True)
class KnownText:
    """The beginning of a text that an engine can write to a file without computing."""

    n_tokens: int
    n_bytes: int
    """About."""
    of: int | None
    """The ended request whose text it is; None: a slot has it."""
    slot: int | None


class EngineTexts:
    def __init__(self, engine: str, held: HeldPages) -> None:
        self._engine = engine
        self._held = held
        self._ended: deque[tuple[bytes, int]] = deque(maxlen=_MAX_ENDED)
        self._unreported: deque[bytes] = deque(maxlen=_MAX_ENDED)

    def note_ended(self, key: bytes, request_id: int) -> None:
        """`key`: all that was computed of it."""
        self._ended.append((key, request_id))
        self._unreported.append(key)

    def note_report(self) -> None:
        """HeldPages has heard of the engine's pages: a report follows the end of the request that has changed them."""
        self._unreported.clear()

    def clear(self) -> None:
        """The engine is gone."""
        self._ended.clear()
        self._unreported.clear()

    def n_held(self, key: bytes, names: Iterable[bytes], being_read: Iterable[bytes]) -> int:
        """Tokens of a text's start, in whole pages. `names`: of its pages; `being_read`: texts that will be held."""
        n_held = self._held.n_first(self._engine, names) * PAGE_TOKENS
        for other in (*being_read, *self._unreported):
            further = key[: (n_held + PAGE_TOKENS) * TOKEN_BYTES]
            if len(further) == (n_held + PAGE_TOKENS) * TOKEN_BYTES and other.startswith(further):
                n_held = common_tokens(key, other) // PAGE_TOKENS * PAGE_TOKENS
        return n_held

    def longest_ended(self, key: bytes, n_held: int) -> Match[int] | None:
        """The request with the longest text that is a beginning of `key`, of which so many tokens are held."""
        n_most = (n_held + PAGE_TOKENS) * TOKEN_BYTES - 1  # the rest of a page is not reported
        found = [
            Match(len(text) // TOKEN_BYTES, request)
            for text, request in self._ended
            if len(text) <= n_most and key.startswith(text)
        ]
        return max(found, default=None)
