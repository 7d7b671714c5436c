"""HeldPages: which pages the engines of one server hold, and where, as the engines report it (`[pages]`).

The one answer to "who holds which prefix": routing, moves, slots, KV events and Ray's digests ask it. Pure. It must not
know what is done with the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from luce.protocol import RemoteProtocolError
from luce.supervisor.prefix_cache.page_changes import PageChange, PageText, Tier

_NOWHERE: frozenset[Tier] = frozenset()


@dataclass(slots=True)
class _Page:
    text: PageText
    depth: int | None
    """Pages of the text up to its end; None: what stands before it was not held when it came."""
    tiers: dict[str, frozenset[Tier]] = field(default_factory=dict)
    """By engine."""

    def all_tiers(self) -> frozenset[Tier]:
        return _NOWHERE.union(*self.tiers.values())


@dataclass(frozen=True, slots=True)
class PageMove:
    """A page's tiers, of all engines together, have changed."""

    name: bytes
    text: PageText
    before: frozenset[Tier]
    now: frozenset[Tier]


class PageListener(Protocol):
    def pages_moved(self, moves: Sequence[PageMove]) -> None: ...

    def pages_cleared(self) -> None:
        """No engine holds anything any more."""


class HeldPages:
    def __init__(self) -> None:
        self._pages: dict[bytes, _Page] = {}
        self._listeners: list[PageListener] = []

    def watch(self, listener: PageListener) -> None:
        """It hears of what is held now, and of each change from now on."""
        self._listeners.append(listener)
        if self._pages:
            listener.pages_moved(self.listing())

    # What engines report

    def change(self, engine: str, changes: Sequence[PageChange], *, begins_anew: bool = False) -> None:
        """`begins_anew`: what the engine reported before is void. Raises RemoteProtocolError for a page whose text no
        engine has reported."""
        if begins_anew:
            self.lose(engine)
        self._tell([move for change in changes if (move := self._apply(engine, change)) is not None])

    def lose(self, engine: str) -> None:
        """The engine is gone, with all that it held."""
        held = [name for name, page in self._pages.items() if engine in page.tiers]
        moves = [self._move(engine, name, _NOWHERE) for name in held]
        if held and not self._pages:
            for listener in self._listeners:
                listener.pages_cleared()
        else:
            self._tell([move for move in moves if move is not None])

    # Who holds what

    def n_first(self, engine: str, names: Iterable[bytes]) -> int:
        """How many of a text's pages the engine holds, from the first on."""
        n = 0
        for name in names:
            page = self._pages.get(name)
            if page is None or engine not in page.tiers:
                break
            n += 1
        return n

    def names(self, *, every: int) -> list[bytes]:
        """Of the pages that end a multiple of so many pages behind the beginning of their text."""
        return [name for name, page in self._pages.items() if page.depth is not None and page.depth % every == 0]

    def listing(self) -> list[PageMove]:
        """All that is held, a page's parent before it."""
        return [PageMove(name, page.text, _NOWHERE, page.all_tiers()) for name, page in self._parents_first()]

    def _apply(self, engine: str, change: PageChange) -> PageMove | None:
        if change.name not in self._pages:
            if change.text is None:
                raise RemoteProtocolError(f"page {change.name.hex()} was reported, but never its text")
            self._pages[change.name] = _Page(change.text, self._depth(change.text))
        return self._move(engine, change.name, change.tiers)

    def _depth(self, text: PageText) -> int | None:
        if text.parent is None:
            return 1
        parent = self._pages.get(text.parent)
        return None if parent is None or parent.depth is None else parent.depth + 1

    def _move(self, engine: str, name: bytes, tiers: frozenset[Tier]) -> PageMove | None:
        """REQUIRES: the page is known."""
        page = self._pages[name]
        before = page.all_tiers()
        if tiers:
            page.tiers[engine] = tiers
        else:
            page.tiers.pop(engine, None)
        now = page.all_tiers()
        if not now:
            del self._pages[name]
        return None if now == before else PageMove(name, page.text, before, now)

    def _tell(self, moves: Sequence[PageMove]) -> None:
        for listener in self._listeners if moves else ():
            listener.pages_moved(moves)

    def _parents_first(self) -> Iterator[tuple[bytes, _Page]]:
        listed: set[bytes] = set()
        for name in self._pages:
            chain = []
            at: bytes | None = name
            while at is not None and at in self._pages and at not in listed:
                listed.add(at)
                chain.append(at)
                at = self._pages[at].text.parent
            for link in reversed(chain):
                yield link, self._pages[link]
