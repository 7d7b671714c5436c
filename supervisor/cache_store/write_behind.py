"""WriteBehind: writes what engines have put on disk into the store too, the most wanted first, beside all requests.

What several conversations share comes first, then what a text that has ended can be gone on with from: its pages, and
the checkpoints at its end and at its messages' ends. Other checkpoints, and what lay in the folder before, come when
there is nothing else. Nothing is written that the store has; what it has longer than a day and a text still uses is
written anew, so that it does not grow old.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from weakref import WeakKeyDictionary

from luce.protocol import RemoteProtocolError
from luce.supervisor.cache_store.local_folder import LocalFolder, folder_of
from luce.supervisor.cache_store.object_store import StoreError
from luce.supervisor.cache_store.stored_files import StoredFiles
from luce.supervisor.engine.disk_files import DiskFiles
from luce.supervisor.engine.generation import EngineDied, EngineError
from luce.supervisor.prefix_cache.page_names import PAGE_TOKENS, TOKEN_BYTES, MemoryFile, page_names
from luce.supervisor.prefix_cache.prefix_index import pack
from luce.supervisor.scheduling.engine_handle import EngineHandle
from luce.supervisor.scheduling.in_flight_request import InFlightRequest
from luce.supervisor.scheduling.multiplexer import Multiplexer

_LOG = logging.getLogger("luce.cache_store")

_N_BESIDE_REQUESTS = 2
_N_IDLE = 8
_MAX_PAGES = 500_000
_RENEWED_S = 86_400.0
_LOOK_S = 0.5
_LOOKS_FOR_S = 30.0
"""For so long after the end of an answer an engine is asked what it has written: it writes behind as well."""
_FIRST_RETRY_S = 1.0
_LAST_RETRY_S = 60.0

_SHARED, _ENDED, _OTHER = range(3)


class _Place:
    """Of a page in the texts that were answered."""

    __slots__ = ("child", "has_branches", "index", "is_shared", "stops")

    def __init__(self, index: int) -> None:
        self.index = index
        self.child: bytes | None = None
        self.has_branches = self.is_shared = False
        self.stops: frozenset[int] = frozenset()
        """Positions of checkpoints that are wanted behind it."""


class WriteBehind:
    def __init__(self, files: StoredFiles, multiplexer: Multiplexer, *, bytes_per_s: int | None) -> None:
        self._files = files
        self._multiplexer = multiplexer
        self._bytes_per_s = bytes_per_s
        self._places: OrderedDict[bytes, _Place] = OrderedDict()
        self._since: WeakKeyDictionary[DiskFiles, int] = WeakKeyDictionary()
        self._wanted: dict[MemoryFile, LocalFolder] = {}  # of texts that were answered
        self._others: dict[bytes, dict[MemoryFile, LocalFolder]] = {}  # by page
        self._order: list[MemoryFile] | None = []  # of the wanted, the first one last; None: to be made anew
        self._unnoted: set[InFlightRequest] = set()
        self._ended = asyncio.Event()
        self._has_work = asyncio.Event()
        self._looks_until_s = time.monotonic() + _LOOKS_FOR_S
        self._free_at_s = 0.0
        self._retry_s = 0.0

    @property
    def n_waiting(self) -> int:
        return len(self._wanted) + sum(map(len, self._others.values()))

    async def note(self, in_flight: InFlightRequest) -> None:
        """A request has ended: what its text consists of is wanted. What is cancelled here `write_rest` does."""
        self._unnoted.add(in_flight)
        await self._note(in_flight)
        self._unnoted.discard(in_flight)

    async def _note(self, in_flight: InFlightRequest) -> None:
        if not (identity := in_flight.identity):
            return
        key = in_flight.key + pack(in_flight.tokens[:-1])
        names = await asyncio.to_thread(lambda: list(page_names(key, identity)))
        bounds = sorted(mark for mark in in_flight.request.boundaries if 0 < mark <= in_flight.n_prompt)
        stops = {*bounds[:1], *bounds[-1:], in_flight.n_prompt, len(key) // TOKEN_BYTES}
        if in_flight.request.turn is not None:
            stops.add(in_flight.request.turn)
        is_shared = False
        for index in reversed(range(len(names))):
            place = self._note_page(names, index, stops)
            is_shared = is_shared or place.has_branches
            place.is_shared = place.is_shared or is_shared
        while len(self._places) > _MAX_PAGES:
            self._places.popitem(last=False)
        self._renew(names)
        self._order = None
        self._has_work.set()
        self._looks_until_s = time.monotonic() + _LOOKS_FOR_S
        self._ended.set()

    def _note_page(self, names: list[bytes], index: int, stops: set[int]) -> _Place:
        name, end = names[index], (index + 1) * PAGE_TOKENS
        place = self._places.setdefault(name, _Place(index))
        self._places.move_to_end(name)
        place.stops |= {stop for stop in stops if end <= stop < end + PAGE_TOKENS}
        if index + 1 < len(names):
            place.has_branches = place.has_branches or place.child not in {None, names[index + 1]}
            place.child = names[index + 1]
        for file, folder in self._others.pop(name, {}).items():
            self._wanted[file] = folder
        return place

    def _renew(self, names: list[bytes]) -> None:
        handle = next((handle for handle in self._multiplexer.handles if handle.disk_files is not None), None)
        folder = None if handle is None else folder_of(handle)
        old_s = time.time() - _RENEWED_S
        for name in names if folder is not None else ():
            stored = self._files.index.get(MemoryFile(name))
            if stored is not None and stored.written_s < old_s:
                assert folder is not None
                self._wanted[MemoryFile(name)] = folder

    # What engines have written

    async def watch(self) -> None:
        """For ever."""
        while True:
            for handle in self._multiplexer.handles:
                await self._look(handle)
            if time.monotonic() >= self._looks_until_s:
                self._ended.clear()
                await self._ended.wait()
            await asyncio.sleep(_LOOK_S)

    async def _look(self, handle: EngineHandle) -> None:
        files, folder = handle.disk_files, folder_of(handle)
        if files is None or folder is None:
            return
        try:
            while True:
                number, new = await files.since(self._since.get(files, 0))
                self._since[files] = number
                for entry in new:
                    self._offer(entry.file, folder)
                if not new:
                    return
        except (EngineDied, EngineError, RemoteProtocolError) as error:
            _LOG.debug("%s does not report its written files: %s", handle.monitor.name, error)

    def _offer(self, file: MemoryFile, folder: LocalFolder) -> None:
        if file in self._files.index:
            return
        if file.page in self._places:
            self._wanted[file] = folder
            self._order = None
        else:
            self._others.setdefault(file.page, {})[file] = folder
        self._has_work.set()

    # Writing

    async def write(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as group:
            for number in range(_N_IDLE):
                group.create_task(self._write_some(number), name=f"writing into the cache store {number}")

    async def _write_some(self, number: int) -> None:
        while True:
            if not self._files.is_listed or (number >= _N_BESIDE_REQUESTS and self._multiplexer.n_running > 0):
                await asyncio.sleep(_LOOK_S)
                continue
            taken = self._take()
            if taken is None:
                self._has_work.clear()
                await self._has_work.wait()
                continue
            await self._write(*taken)

    async def _write(self, file: MemoryFile, folder: LocalFolder) -> None:
        try:
            await self._files.write(file, folder, self._pace)
        except StoreError as error:
            self._files.note_failure("writing", error)
            self._wanted[file] = folder
            self._order = None
            self._retry_s = min(max(2 * self._retry_s, _FIRST_RETRY_S), _LAST_RETRY_S)
            await asyncio.sleep(self._retry_s)
            return
        self._retry_s = 0.0

    async def _pace(self, n_bytes: int) -> None:
        if self._bytes_per_s is not None:
            now_s = time.monotonic()
            begins_s = max(self._free_at_s, now_s)
            self._free_at_s = begins_s + n_bytes / self._bytes_per_s
            await asyncio.sleep(begins_s - now_s)

    def _take(self) -> tuple[MemoryFile, LocalFolder] | None:
        if self._order is None:
            self._order = sorted(self._wanted, key=self._value, reverse=True)
        while self._order:
            file = self._order.pop()
            if (folder := self._wanted.pop(file, None)) is not None:
                return file, folder
        while self._others:
            page = next(iter(self._others))
            files = self._others[page]
            with suppress(KeyError):
                return files.popitem()
            del self._others[page]
        return None

    def _value(self, file: MemoryFile) -> tuple[int, int]:
        """What is written first is lowest."""
        place = self._places.get(file.page)
        if place is None:
            return _OTHER, 0
        is_stop = (place.index + 1) * PAGE_TOKENS + file.n_rest in place.stops
        if file.checkpoint is not None and not is_stop:
            return _OTHER, place.index
        return _SHARED if place.is_shared else _ENDED, place.index

    async def write_rest(self, folders: Sequence[LocalFolder]) -> None:
        """Engines have ended, and have written what they had: what of it is wanted follows. May be cancelled."""
        self._free_at_s = 0.0  # what waited for its turn then does so no more
        for in_flight in self._unnoted:
            await self._note(in_flight)
        for folder in folders:
            for file in await asyncio.to_thread(folder.files):
                if file.page in self._places:
                    self._offer(file, folder)
        self._others.clear()
        self._order = None

        async def write_all() -> None:
            while (taken := self._take()) is not None:
                with suppress(StoreError):
                    await self._files.write(*taken, self._pace)

        await asyncio.gather(*(write_all() for _ in range(_N_IDLE)))
