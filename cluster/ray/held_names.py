"""HeldNames: the names of all beginnings of texts that a replica's engines hold, kept up as its pages come and go.

A PageListener. It must not know what is done with the names.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from luce.ray.prefix_names import ROOT, PrefixDigest, next_name
from luce.supervisor.scheduling.page_changes import PageChange


@dataclass(frozen=True, slots=True)
class _Page:
    name: bytes
    n_pages: int
    """Up to its end."""


class HeldNames:
    def __init__(self, *, stride_pages: int) -> None:
        self._stride_pages = stride_pages
        self._pages: dict[str, dict[bytes, _Page]] = {}  # engine -> the engine's own name -> page
        self._held: Counter[bytes] = Counter()

    def pages_changed(self, engine: str, changes: Sequence[PageChange], *, begins_anew: bool) -> None:
        if begins_anew:
            self.pages_lost(engine)
        pages = self._pages.setdefault(engine, {})
        for change in changes:
            if not change.tiers:
                self._drop(pages.pop(change.name, None))
            elif change.text is not None and change.name not in pages:
                parent = None if change.text.parent is None else pages.get(change.text.parent)
                if parent is None and change.text.parent is not None:
                    continue  # a run whose beginning is gone: no prompt finds it
                data = array("i", change.text.tokens)
                name = next_name(ROOT if parent is None else parent.name, data.tobytes())
                page = pages[change.name] = _Page(name, 1 if parent is None else parent.n_pages + 1)
                if self._is_named(page):
                    self._held[name] += 1

    def pages_lost(self, engine: str) -> None:
        for page in self._pages.pop(engine, {}).values():
            self._drop(page)

    def digest(self) -> PrefixDigest:
        return PrefixDigest.of(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def _is_named(self, page: _Page) -> bool:
        return page.n_pages % self._stride_pages == 0

    def _drop(self, page: _Page | None) -> None:
        if page is None or not self._is_named(page):
            return
        self._held[page.name] -= 1
        if self._held[page.name] == 0:
            del self._held[page.name]


assert sys.byteorder == "little", "names are made of tokens as little-endian numbers"
