"""Transfers: files on their way from the store into a folder, several at once, each once however many want it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from luce.supervisor.cache_store.local_folder import LocalFolder
from luce.supervisor.cache_store.object_store import StoreError
from luce.supervisor.cache_store.stored_files import StoredFiles
from luce.supervisor.prefix_cache.page_names import MemoryFile

_N_AT_ONCE = 16
_N_LARGE_AT_ONCE = 2
_LARGE_BYTES = 32 << 20
"""One of these is held in memory while it comes."""


@dataclass(slots=True)
class _Coming:
    task: asyncio.Task[bool]
    n_waiting: int = 0


class Transfers:
    def __init__(self, files: StoredFiles) -> None:
        self._files = files
        self._coming: dict[tuple[MemoryFile, LocalFolder], _Coming] = {}
        self._few = asyncio.Semaphore(_N_AT_ONCE)
        self._large = asyncio.Semaphore(_N_LARGE_AT_ONCE)

    def begin(self, files: Sequence[MemoryFile], folder: LocalFolder) -> Batch:
        """It is to be closed."""
        batch = Batch(self)
        for file in files:
            key = (file, folder)
            coming = self._coming.get(key)
            if coming is None:
                task = asyncio.create_task(self._fetch(file, folder), name=f"fetching {file.name}")
                coming = self._coming[key] = _Coming(task)
                task.add_done_callback(lambda _, key=key: self._coming.pop(key, None))  # type: ignore[misc]
            coming.n_waiting += 1
            batch.coming[file] = coming
        return batch

    async def _fetch(self, file: MemoryFile, folder: LocalFolder) -> bool:
        stored = self._files.index.get(file)
        is_large = stored is not None and stored.n_bytes >= _LARGE_BYTES
        async with self._large if is_large else self._few:
            try:
                return await self._files.fetch(file, folder)
            except StoreError as error:
                self._files.note_failure("fetching", error)
                return False

    async def close(self) -> None:
        tasks = [coming.task for coming in self._coming.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Batch:
    """What one prompt waits for."""

    def __init__(self, transfers: Transfers) -> None:
        self.coming: dict[MemoryFile, _Coming] = {}
        self._transfers = transfers

    @property
    def is_done(self) -> bool:
        return all(coming.task.done() for coming in self.coming.values())

    def here(self) -> list[MemoryFile]:
        """Those that have come."""
        return [file for file, coming in self.coming.items() if _has_come(coming.task)]

    async def wait(self, timeout_s: float) -> None:
        """Until all have come, or so long. REQUIRES: not all have."""
        await asyncio.wait([coming.task for coming in self.coming.values()], timeout=timeout_s)

    def close(self) -> None:
        """What nobody else waits for is given up."""
        for coming in self.coming.values():
            coming.n_waiting -= 1
            if coming.n_waiting == 0:
                coming.task.cancel()


def _has_come(task: asyncio.Task[bool]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None and task.result()
