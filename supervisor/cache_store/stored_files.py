"""StoredFiles: the store as files of the engines' memories: what it has, and each file whole, checked and on its way.

Whatever fails is counted and said once, until it works again. What is damaged is refused and counted as well, until it
has been written again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from luce.supervisor.cache_store.local_folder import LocalFolder
from luce.supervisor.cache_store.object_store import MAX_OBJECT_BYTES, ObjectStore, StoredObject, StoreError
from luce.supervisor.cache_store.objects import (
    SEAL_BYTES,
    DamagedObjectError,
    object_path,
    opened,
    parse_path,
    sealed,
)
from luce.supervisor.cache_store.store_index import StoredFile, StoreIndex
from luce.supervisor.prefix_cache.page_names import MemoryFile
from luce.supervisor.scheduling.prices import FetchPrice, Price

_LOG = logging.getLogger("luce.cache_store")


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """Since the start."""

    n_fetched: int = 0
    fetched_bytes: int = 0
    n_written: int = 0
    written_bytes: int = 0
    n_refused: int = 0
    """Objects that were not what their names say."""
    n_failures: int = 0
    """Requests that the store did not serve."""
    n_helped: int = 0
    """Prompts that were gone on with from what was fetched for them."""
    n_late: int = 0
    """Prompts that had been read before what was fetched for them had come."""
    n_dear: int = 0
    """Prompts for which fetching would have cost more than reading."""
    n_removed: int = 0
    """Objects that were deleted for their age, or to keep the budget."""


class StoredFiles:
    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.index = StoreIndex()
        self.fetching = FetchPrice()
        self.putting = Price()
        """A processor's seconds to check a byte and write it into a folder."""
        self.counts = StoreCounts()
        self.is_listed = False
        self._refused: dict[MemoryFile, float] = {}  # and when
        self.is_failing = False

    def count(self, **more: int) -> None:
        self.counts = replace(self.counts, **{name: getattr(self.counts, name) + n for name, n in more.items()})

    async def list(self, identities: AbstractSet[str], see: Callable[[StoredObject], None]) -> None:
        """Anew, and `see` all that there is, of other identities too. Raises StoreError."""
        began_s = time.time()
        own: list[tuple[MemoryFile, StoredFile]] = []
        async for chunk in self.store.objects(""):
            for entry in chunk:
                parsed = parse_path(entry.path)
                if parsed is None or entry.n_bytes > MAX_OBJECT_BYTES:
                    continue
                see(entry)
                if parsed[0] in identities and not self.is_refused(parsed[1], entry.written_s):
                    own.append((parsed[1], StoredFile(entry.n_bytes, entry.written_s)))
        newer = self.index.since(began_s)  # the listing may have gone past it before
        self.index.replace([*own, *newer])
        self.is_listed = True
        self.note_success()

    def is_refused(self, file: MemoryFile, written_s: float) -> bool:
        """What was written then was not what its name says."""
        return self._refused.get(file, -1.0) >= written_s

    async def fetch(self, file: MemoryFile, folder: LocalFolder) -> bool:
        """Into the folder. False: there is no such file, or it was refused. Raises StoreError."""
        path = object_path(folder.identity, file)
        data = await self.store.get(path)
        if data is None:
            self.index.discard(file)
            return False
        try:
            self.putting.note(len(data), await asyncio.to_thread(_put, folder, file, path, data))
        except DamagedObjectError as error:
            self._refused[file] = time.time()
            self.index.discard(file)
            self.count(n_refused=1)
            _LOG.warning("cache store: %s is refused: %s", path, error)
            return False
        except OSError as error:
            raise StoreError(f"cannot write into the disk cache: {error}") from error
        self.count(n_fetched=1, fetched_bytes=len(data))
        self.note_success()
        return True

    async def write(self, file: MemoryFile, folder: LocalFolder, pace: Callable[[int], Awaitable[None]]) -> None:
        """Nothing, if it is not in the folder any more. `pace`: returns when so many bytes may be written. Raises
        StoreError."""
        path = object_path(folder.identity, file)
        try:
            content = await asyncio.to_thread(folder.read, file)
        except OSError as error:
            raise StoreError(f"cannot read the disk cache: {error}") from error
        if content is None or len(content) + SEAL_BYTES > MAX_OBJECT_BYTES:
            return
        data = await asyncio.to_thread(sealed, path, content)
        await pace(len(data))
        await self.store.put(path, data)
        self.index.add(file, StoredFile(len(data), time.time()))
        self._refused.pop(file, None)
        self.count(n_written=1, written_bytes=len(data))
        self.note_success()

    def forget(self, paths: Sequence[str]) -> None:
        """They have been deleted."""
        for parsed in map(parse_path, paths):
            if parsed is not None:
                self.index.discard(parsed[1])

    def note_failure(self, doing: str, error: StoreError) -> None:
        self.count(n_failures=1)
        if not self.is_failing:
            self.is_failing = True
            _LOG.warning("cache store %s: %s failed and will be retried: %s", self.store.url, doing, error)

    def note_success(self) -> None:
        if self.is_failing:
            self.is_failing = False
            _LOG.info("cache store %s: it works again", self.store.url)


def _put(folder: LocalFolder, file: MemoryFile, path: str, data: memoryview) -> float:
    """Returns the processor's seconds. Raises DamagedObjectError, OSError."""
    began_s = time.thread_time()
    folder.put(file, opened(path, data))
    return time.thread_time() - began_s
