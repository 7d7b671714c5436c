"""FetchAhead: fetches from the store what a prompt that has come could be gone on with, while it waits or is read.

A prompt never waits for the store: it has its place in the queue, and is read like any other. Once what it needs is
here and would still save reading, its reading is broken off and begun again from there; what was read of it is kept as
well. So a store that is slow, broken or damaged costs its requests nothing but a reading that goes on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from contextlib import suppress

from luce.supervisor.cache_store.local_folder import LocalFolder, folder_of
from luce.supervisor.cache_store.look_up import LookUp
from luce.supervisor.cache_store.store_index import FetchPlan
from luce.supervisor.cache_store.stored_files import StoredFiles
from luce.supervisor.cache_store.transfers import Transfers
from luce.supervisor.engine.disk_files import DiskFiles
from luce.supervisor.engine.generation import EngineDied, EngineError
from luce.supervisor.prefix_cache.page_names import PAGE_TOKENS, MemoryFile
from luce.supervisor.requests import RequestError
from luce.supervisor.scheduling.engine_handle import EngineHandle
from luce.supervisor.scheduling.in_flight_request import Attempt, InFlightRequest
from luce.supervisor.scheduling.multiplexer import Multiplexer

_LOG = logging.getLogger("luce.cache_store")
_FIRST_SLICE = 2 * PAGE_TOKENS
"""What an engine that has read nothing yet reads first, at once: nothing can be saved of it."""
_NEXT_SLICE = 512
"""What it reads at once after that, at most, until it has said."""
_LOOK_S = 0.02
"""How often it is looked whether a prompt still needs what is coming."""


class FetchAhead:
    def __init__(self, files: StoredFiles, transfers: Transfers, multiplexer: Multiplexer) -> None:
        self._files = files
        self._transfers = transfers
        self._multiplexer = multiplexer
        self._look_up = LookUp(files)

    async def help(self, in_flight: InFlightRequest) -> None:
        """Returns once its prompt has what the store can give, or needs it no more."""
        if not in_flight.request.reuse or in_flight.n_prompt < _FIRST_SLICE:
            return
        with suppress(RequestError):  # no engine will ever be there
            await self._multiplexer.engine(lambda _: 0)
        handle = self._handle_of(in_flight)
        if in_flight.finished or handle is None or handle.info is None or (folder := folder_of(handle)) is None:
            return
        names = await asyncio.to_thread(lambda: in_flight.page_names(folder.identity))
        plan = await self._plan(in_flight, names, folder, handle)
        if plan is not None:
            await self._fetch(in_flight, plan, folder)

    def _handle_of(self, in_flight: InFlightRequest) -> EngineHandle | None:
        """The engine that reads it, or else one that could."""
        handles = [handle for handle in self._multiplexer.handles if handle.disk_files is not None]
        if (reading := self._reading_of(in_flight)) is not None:
            return reading[0] if reading[0] in handles else None
        return max(handles, key=lambda handle: (handle.n_held(in_flight), handle.n_free), default=None)

    def _reading_of(self, in_flight: InFlightRequest) -> tuple[EngineHandle, Attempt] | None:
        for handle in self._multiplexer.handles:
            for attempt in handle.attempts:
                if attempt.in_flight is in_flight:
                    return handle, attempt
        return None

    async def _plan(
        self, in_flight: InFlightRequest, names: Sequence[bytes], folder: LocalFolder, handle: EngineHandle
    ) -> FetchPlan | None:
        """What is to be fetched. None: nothing, or reading is cheaper."""
        assert handle.info is not None
        has_state, prices = handle.info.tail_bytes > 0, handle.prices
        bounds = sorted(mark for mark in in_flight.request.boundaries if 0 < mark <= in_flight.n_prompt)
        stops = bounds[:1] + bounds[-1:]
        n_pages = await asyncio.to_thread(folder.n_first_pages, names)
        n_known = self._files.index.n_first_pages(names, n_pages)
        reading_s = prices.read_s(in_flight.n_prompt - n_known * PAGE_TOKENS)
        await self._look_up.look(
            folder.identity, names, n_known, [stop // PAGE_TOKENS - 1 for stop in stops], reading_s
        )

        def plan(n_pages: int) -> FetchPlan | None:
            return self._files.index.plan(in_flight.key, names, n_pages=n_pages, has_state=has_state, stops=stops)

        whole = plan(0)
        # Mostly all that the store has of a text lies in the folder too.
        if whole is not None and folder.has(whole.deepest):
            return None
        chosen = plan(n_pages)
        if chosen is None:
            return None
        n_saved = chosen.n_tokens - (0 if has_state else n_pages * PAGE_TOKENS)
        reading_s = prices.read_s(n_saved)
        fetching_s = self._files.fetching.fetch_s(self._n_bytes(chosen.files), time.monotonic())
        is_dear = (
            reading_s is not None
            and fetching_s is not None
            and fetching_s + (prices.restore_s(chosen.n_tokens) or 0.0) > reading_s
        )
        if is_dear:
            self._files.count(n_dear=1)
        return None if is_dear or n_saved < _FIRST_SLICE else chosen

    async def _fetch(self, in_flight: InFlightRequest, plan: FetchPlan, folder: LocalFolder) -> None:
        """What has come is of use in any case."""
        began_s = time.monotonic()
        missing = await asyncio.to_thread(lambda: [file for file in plan.files if not folder.has(file)])
        batch = self._transfers.begin(missing, folder)
        try:
            while not batch.is_done and self._gain_s(in_flight, plan) > 0:
                await batch.wait(_LOOK_S)
            is_late = not batch.is_done
        finally:
            batch.close()
        lost = set(missing).difference(batch.here())
        if is_late or not lost:  # what fails tells nothing of speed
            now_s = time.monotonic()
            self._files.fetching.note(self._n_bytes(batch.here()), now_s - began_s, now_s)
        here = [file for file in plan.files if file not in lost]
        if not is_late and not lost.intersection(plan.needed):
            await self._go_on(in_flight, plan, folder, here)
            return
        if is_late:
            self._files.count(n_late=1)
        await self._adopt(here, folder)

    async def _go_on(
        self, in_flight: InFlightRequest, plan: FetchPlan, folder: LocalFolder, here: Sequence[MemoryFile]
    ) -> None:
        """Its reading is broken off if that gains something. An engine listens between two steps only, so it is told of
        the end and of the files at once, and the prompt begins again when it knows both."""
        is_of_use = self._gain_s(in_flight, plan) > 0
        is_broken_off = is_of_use and self._is_read_from(in_flight, folder)
        if is_broken_off:
            in_flight.waits_for_files = True
            self._multiplexer.set_aside(in_flight)
        try:
            await self._adopt(here, folder)
        finally:
            in_flight.waits_for_files = False
        if not is_of_use:
            self._files.count(n_late=1)
            return
        self._files.count(n_helped=1)
        if not is_broken_off and self._is_read_from(in_flight, folder) and self._gain_s(in_flight, plan) > 0:
            self._multiplexer.set_aside(in_flight)  # its turn has come meanwhile
        self._multiplexer.look_again()

    async def _adopt(self, here: Sequence[MemoryFile], folder: LocalFolder) -> None:
        async def tell(files: DiskFiles) -> None:
            try:
                await files.adopt(here)
            except (EngineDied, EngineError) as error:
                _LOG.debug("an engine was not told of files: %s", error)

        told = [handle.disk_files for handle in self._handles_of(folder) if handle.disk_files is not None]
        await asyncio.gather(*(tell(files) for files in told if here))

    def _handles_of(self, folder: LocalFolder) -> list[EngineHandle]:
        return [handle for handle in self._multiplexer.handles if folder_of(handle) == folder]

    def _n_bytes(self, files: Sequence[MemoryFile]) -> int:
        return sum(stored.n_bytes for file in files if (stored := self._files.index.get(file)) is not None)

    def _is_read_from(self, in_flight: InFlightRequest, folder: LocalFolder) -> bool:
        reading = self._reading_of(in_flight)
        return reading is not None and folder_of(reading[0]) == folder

    def _gain_s(self, in_flight: InFlightRequest, plan: FetchPlan) -> float:
        """How much sooner its prompt is read if it begins again with what is fetched once the step that runs has ended,
        as it would have to in any case. What nobody has measured yet is taken from what has been: coming back from the
        page cache takes a processor about as long as checking and writing did, and reading at least as long as it has.
        """
        if _has_been_read(in_flight):
            return 0.0
        reading = self._reading_of(in_flight)
        if reading is None:
            return math.inf  # it waits
        handle, attempt = reading
        prices = handle.prices
        largest = max(attempt.largest_slice, prices.largest_slice)
        n_slice = largest or (_FIRST_SLICE if attempt.n_read == 0 else _NEXT_SLICE)
        n_saved = plan.n_tokens - attempt.n_read - n_slice
        if n_saved <= 0:
            return 0.0
        read_s = prices.read_s(n_saved)
        if read_s is None:
            n_read, until_s = (attempt.n_read, attempt.moved_s) if attempt.n_read else (n_slice, time.monotonic())
            read_s = n_saved * (until_s - attempt.started_s) / n_read
        restore_s = prices.restore_s(plan.n_tokens)
        if restore_s is None:
            restore_s = self._files.putting.of(self._n_bytes(plan.files)) or 0.0
        return read_s - restore_s


def _has_been_read(in_flight: InFlightRequest) -> bool:
    return in_flight.finished or in_flight.first_token_s is not None
