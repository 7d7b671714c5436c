"""Upkeep: lists the store again and again, and where it is told to, deletes what is too old or too much.

Any number of servers may do so at once: what one has deleted is no matter for another. Only objects whose paths are
ours are looked at.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass

from luce.supervisor.cache_store.object_store import StoredObject, StoreError
from luce.supervisor.cache_store.stored_files import StoredFiles
from luce.supervisor.requests import RequestError

_EVERY_S = 15.0
_SHARE = 20
"""A listing takes at most so large a part of the time."""
_N_AT_ONCE = 500
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class StoreBounds:
    """None: without."""

    n_bytes: int | None = None
    days: float | None = None


class Upkeep:
    def __init__(
        self, files: StoredFiles, bounds: StoreBounds, *, identities: Callable[[], Awaitable[AbstractSet[str]]]
    ) -> None:
        """`identities`: of the engines, once one is there. Raises RequestError where none ever will be."""
        self._files = files
        self._bounds = bounds
        self._identities = identities
        self._hurry = asyncio.Event()
        self._asked: list[asyncio.Event] = []

    async def list_now(self) -> None:
        """Returns once it has been listed anew, or could not be."""
        done = asyncio.Event()
        self._asked.append(done)
        self._hurry.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(_EVERY_S):
                await done.wait()

    async def run(self) -> None:
        """As long as there are engines."""
        while True:
            try:
                identities = await self._identities()
            except RequestError:
                return  # no engine is left
            began_s = time.monotonic()
            self._hurry.clear()
            asked, self._asked = self._asked, []
            try:
                await self.once(identities)
            except StoreError as error:
                self._files.note_failure("listing", error)
            for done in asked:
                done.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(_EVERY_S, _SHARE * (time.monotonic() - began_s))):
                    await self._hurry.wait()

    async def once(self, identities: AbstractSet[str]) -> None:
        """Raises StoreError."""
        seen: list[StoredObject] = []
        has_bounds = self._bounds != StoreBounds()
        await self._files.list(identities, seen.append if has_bounds else lambda _: None)
        to_remove = choose(seen, self._bounds, time.time())
        for begin in range(0, len(to_remove), _N_AT_ONCE):
            paths = [entry.path for entry in to_remove[begin : begin + _N_AT_ONCE]]
            await self._files.store.delete(paths)
            self._files.count(n_removed=len(paths))
            self._files.forget(paths)


def choose(objects: Sequence[StoredObject], bounds: StoreBounds, now_s: float) -> list[StoredObject]:
    """What is to be deleted: the longest unwritten first, which is the longest unused but for a day."""
    oldest_first = sorted(objects, key=lambda entry: entry.written_s)
    n_bytes = sum(entry.n_bytes for entry in objects)
    chosen = []
    for entry in oldest_first:
        is_too_much = bounds.n_bytes is not None and n_bytes > bounds.n_bytes
        is_too_old = bounds.days is not None and entry.written_s < now_s - bounds.days * _DAY_S
        if not is_too_much and not is_too_old:
            break
        chosen.append(entry)
        n_bytes -= entry.n_bytes
    return chosen
