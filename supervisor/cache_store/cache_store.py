"""CacheStore: the parts together, for one supervisor: listed, fetched ahead, written behind, kept in bounds."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from luce.supervisor.cache_store.fetch_ahead import FetchAhead
from luce.supervisor.cache_store.local_folder import LocalFolder, folder_of
from luce.supervisor.cache_store.object_store import ObjectStore
from luce.supervisor.cache_store.stored_files import StoreCounts, StoredFiles
from luce.supervisor.cache_store.transfers import Transfers
from luce.supervisor.cache_store.upkeep import StoreBounds, Upkeep
from luce.supervisor.cache_store.write_behind import WriteBehind
from luce.supervisor.config import SupervisorConfig
from luce.supervisor.requests import FinishedEvent
from luce.supervisor.scheduling.in_flight_request import InFlightRequest
from luce.supervisor.scheduling.multiplexer import Multiplexer

_LAST_WRITES_S = 20.0
"""For what engines that have ended have left: a replica that is to go takes its conversations with it."""


@dataclass(frozen=True, slots=True)
class CacheStoreStatus:
    url: str
    is_listed: bool
    n_files: int
    """Of this memory, that the store has."""
    n_bytes: int
    n_waiting: int
    """To be written."""
    counts: StoreCounts


class CacheStore:
    def __init__(
        self, store: ObjectStore, multiplexer: Multiplexer, bounds: StoreBounds, *, bytes_per_s: int | None
    ) -> None:
        self._multiplexer = multiplexer
        self._files = StoredFiles(store)
        self._transfers = Transfers(self._files)
        self._upkeep = Upkeep(self._files, bounds, identities=self._identities)
        self._fetching = FetchAhead(self._files, self._transfers, multiplexer)
        self._writing = WriteBehind(self._files, multiplexer, bytes_per_s=bytes_per_s)
        self._group: asyncio.TaskGroup | None = None

    @classmethod
    def of(cls, config: SupervisorConfig, multiplexer: Multiplexer) -> CacheStore | None:
        """None, if there is to be none. Raises ConfigError."""
        if config.cache_store is None:
            return None
        bounds = StoreBounds(config.cache_store_budget, config.cache_store_days)
        store = ObjectStore.open(config.cache_store)
        return cls(store, multiplexer, bounds, bytes_per_s=config.cache_store_rate)

    def note(self, in_flight: InFlightRequest) -> None:
        """A request has come."""
        if self._group is None:
            return
        in_flight.on_finish = lambda event: self._note_end(in_flight, event)
        self._group.create_task(self._fetching.help(in_flight), name="fetching ahead")

    def _note_end(self, in_flight: InFlightRequest, event: FinishedEvent) -> None:
        if self._group is not None and event.n_read is None:  # a text with gaps is known by other names
            self._group.create_task(self._writing.note(in_flight), name="noting what is to be written")

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as self._group:
                self._group.create_task(self._upkeep.run(), name="listing the cache store")
                self._group.create_task(self._writing.watch(), name="hearing of files on disk")
                self._group.create_task(self._writing.write(), name="writing into the cache store")
        finally:
            self._group = None
            await self._transfers.close()

    async def list_now(self) -> None:
        """Somebody has written into the store."""
        await self._upkeep.list_now()

    async def write_rest(self) -> None:
        """REQUIRES: the engines have ended."""
        folders = {folder for handle in self._multiplexer.handles if (folder := folder_of(handle)) is not None}
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WRITES_S):
                await self._writing.write_rest(list[LocalFolder](folders))

    def status(self) -> CacheStoreStatus:
        index = self._files.index
        return CacheStoreStatus(
            url=self._files.store.url,
            is_listed=self._files.is_listed,
            n_files=len(index),
            n_bytes=index.n_bytes,
            n_waiting=self._writing.n_waiting,
            counts=self._files.counts,
        )

    async def _identities(self) -> set[str]:
        """Of what the engines keep, once one is there: several, where number formats differ. Raises RequestError where
        none will be."""
        await self._multiplexer.engine(lambda _: 0)
        return {handle.info.identity for handle in self._multiplexer.handles if handle.info is not None}
