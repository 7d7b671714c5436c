"""FetchAhead: fetches from the store what a prompt that has come could be gone on with, while it waits or is read.

A prompt never waits for the store: it has its place in the queue, and is read like any other. Once what it needs is
here and would still save reading, its reading is broken off and begun again from there; what was read of it is kept as
well. So a store that is slow, broken or damaged costs its requests nothing but a reading that goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress

from luce.supervisor.cache_store.local_folder import LocalFolder, folder_of
from luce.supervisor.cache_store.prices import ReadingPrice
from luce.supervisor.cache_store.store_index import FetchPlan
from luce.supervisor.cache_store.stored_files import StoredFiles
from luce.supervisor.cache_store.transfers import Transfers
from luce.supervisor.engine.generation import EngineDied, EngineError
from luce.supervisor.prefix_cache.page_names import PAGE_TOKENS, MemoryFile, page_names
from luce.supervisor.scheduling.engine_handle import EngineHandle
from luce.supervisor.scheduling.in_flight_request import Attempt, InFlightRequest
from luce.supervisor.scheduling.multiplexer import Multiplexer

_LOG = logging.getLogger("luce.cache_store")
_LEAST_GAIN = 2 * PAGE_TOKENS
"""Fewer tokens are read sooner than a reading is begun again."""
_LOOK_S = 0.02
"""How often it is looked whether a prompt still needs what is coming."""
_FIRST_LISTING_S = 30.0


class FetchAhead:
    def __init__(
        self, files: StoredFiles, transfers: Transfers, multiplexer: Multiplexer, listed: asyncio.Event
    ) -> None:
        """`listed`: the store's content is known."""
        self._files = files
        self._transfers = transfers
        self._multiplexer = multiplexer
        self.reading = ReadingPrice()
        self._listed = listed

    async def help(self, in_flight: InFlightRequest) -> None:
        """Returns once its prompt has what the store can give, or needs it no more."""
        if not in_flight.request.reuse or in_flight.n_prompt < _LEAST_GAIN or not await self._is_known(in_flight):
            return
        handle = self._handle_of(in_flight)
        if handle is None or handle.info is None or (folder := folder_of(handle)) is None:
            return
        names = await asyncio.to_thread(lambda: list(page_names(in_flight.key, folder.identity)))
        plan = await self._plan(in_flight, names, folder, has_state=handle.info.tail_bytes > 0)
        if plan is None:
            return
        try:
            if await self._fetch(in_flight, plan, folder):
                self._begin_again(in_flight, plan, folder)
        except (EngineDied, EngineError) as error:
            _LOG.debug("nothing was fetched for a prompt: %s", error)

    async def _is_known(self, in_flight: InFlightRequest) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_LISTING_S):
                await self._listed.wait()
        return len(self._files.index) > 0 and not _has_been_read(in_flight)

    def _handle_of(self, in_flight: InFlightRequest) -> EngineHandle | None:
        """The engine that reads it, or else one that could."""
        handles = [handle for handle in self._multiplexer.handles if handle.disk_files is not None]
        if (reading := self._reading_of(in_flight)) is not None:
            return reading[0] if reading[0] in handles else None
        return max(handles, key=lambda handle: (handle.n_held(in_flight.key), handle.n_free), default=None)

    def _reading_of(self, in_flight: InFlightRequest) -> tuple[EngineHandle, Attempt] | None:
        for handle in self._multiplexer.handles:
            for attempt in handle.attempts:
                if attempt.in_flight is in_flight:
                    return handle, attempt
        return None

    async def _plan(
        self, in_flight: InFlightRequest, names: Sequence[bytes], folder: LocalFolder, *, has_state: bool
    ) -> FetchPlan | None:
        """What is to be fetched. None: nothing, or reading is cheaper."""
        bounds = sorted(mark for mark in in_flight.request.boundaries if 0 < mark <= in_flight.n_prompt)

        def plan(n_pages: int) -> FetchPlan | None:
            return self._files.index.plan(
                in_flight.key, names, n_pages=n_pages, has_state=has_state, stops=bounds[:1] + bounds[-1:]
            )

        whole = plan(0)
        # Mostly all that the store has of a text lies in the folder too.
        if whole is None or folder.has(whole.deepest):
            return None
        n_pages = await asyncio.to_thread(folder.n_first_pages, names)
        chosen = plan(n_pages)
        if chosen is None:
            return None
        n_saved = chosen.n_tokens - (0 if has_state else n_pages * PAGE_TOKENS)
        reading_s = self.reading.seconds(n_saved)
        fetching_s = self._files.fetching.seconds(self._n_bytes(chosen.files), time.monotonic())
        is_dear = reading_s is not None and fetching_s is not None and fetching_s > reading_s
        if is_dear:
            self._files.count(n_dear=1)
        return None if is_dear or n_saved < _LEAST_GAIN else chosen

    async def _fetch(self, in_flight: InFlightRequest, plan: FetchPlan, folder: LocalFolder) -> bool:
        """Whether all of it is here, and known to the engines. What has come is of use in any case."""
        began_s = time.monotonic()
        missing = await asyncio.to_thread(lambda: [file for file in plan.files if not folder.has(file)])
        batch = self._transfers.begin(missing, folder)
        try:
            while not batch.is_done and not self._is_late(in_flight, plan):
                await batch.wait(_LOOK_S)
            is_late = not batch.is_done
        finally:
            batch.close()
        lost = set(missing).difference(batch.here())
        if is_late or not lost:  # what fails tells nothing of speed
            now_s = time.monotonic()
            self._files.fetching.note(self._n_bytes(batch.here()), now_s - began_s, now_s)
        here = [file for file in plan.files if file not in lost]
        for handle in self._multiplexer.handles:
            if here and folder_of(handle) == folder and (files := handle.disk_files) is not None:
                await files.adopt(here)
        if is_late:
            self._files.count(n_late=1)
        return not is_late and plan.deepest in here

    def _n_bytes(self, files: Sequence[MemoryFile]) -> int:
        return sum(stored.n_bytes for file in files if (stored := self._files.index.get(file)) is not None)

    def _is_late(self, in_flight: InFlightRequest, plan: FetchPlan) -> bool:
        """Hardly less has been read by now than what is coming."""
        if _has_been_read(in_flight):
            return True
        reading = self._reading_of(in_flight)
        return reading is not None and reading[1].n_read + _LEAST_GAIN > plan.n_tokens

    def _begin_again(self, in_flight: InFlightRequest, plan: FetchPlan, folder: LocalFolder) -> None:
        """If it is being read, and more is known of it by now than has been read."""
        if self._is_late(in_flight, plan):
            self._files.count(n_late=1)
            return
        self._files.count(n_helped=1)
        reading = self._reading_of(in_flight)
        if reading is not None and folder_of(reading[0]) == folder:
            self._multiplexer.set_aside(in_flight)
            self._multiplexer.look_again()


def _has_been_read(in_flight: InFlightRequest) -> bool:
    return in_flight.finished or in_flight.first_token_s is not None
