"""LookUp: asks the store for a text's files by their names, for what others have written since it was listed.

Pages are written from a text's beginning on, so one request to the store tells of most prompts that it has nothing
more. Where it has, how far is found by many places at once; the pages before are taken for there, and what is not is a
miss.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

from luce.supervisor.cache_store.object_store import StoredObject, StoreError
from luce.supervisor.cache_store.objects import object_path, parse_path
from luce.supervisor.cache_store.store_index import StoredFile
from luce.supervisor.cache_store.stored_files import StoredFiles
from luce.supervisor.prefix_cache.page_names import MemoryFile
from luce.supervisor.scheduling.prices import Price

_N_PLACES = 16
"""Of a text that are asked for at once."""
_MOST_TEXTS = 4
"""That are looked up at once: further ones do without."""
_LOOK_UP_S = 5.0


class LookUp:
    def __init__(self, files: StoredFiles) -> None:
        self._files = files
        self._n_texts = 0
        self._looking = Price()

    async def look(
        self, identity: str, names: Sequence[bytes], n_known: int, stops: Iterable[int], reading_s: float | None
    ) -> None:
        """The index knows afterwards which of these pages there are, of which it or the folder knew so many from the
        first on, and the checkpoints behind the last of them and behind some others (`stops`). Nothing is asked where
        that would take longer than reading on (`reading_s`)."""
        is_dear = reading_s is not None and (self._looking.of(1) or 0.0) > reading_s
        if n_known >= len(names) or is_dear or self._files.is_failing or self._n_texts >= _MOST_TEXTS:
            return
        self._n_texts += 1
        try:
            async with asyncio.timeout(_LOOK_UP_S), asyncio.TaskGroup() as group:
                end = await self._find_pages(group, identity, names, n_known)
                for stop in {end - 1, *stops} if end > n_known else ():
                    if n_known <= stop < end:
                        group.create_task(self._find_checkpoints(identity, names[stop]))
        except* (StoreError, TimeoutError) as failed:
            self._files.note_failure("looking up", StoreError(str(failed.exceptions[0]) or "it took too long"))
        finally:
            self._n_texts -= 1

    async def _find_pages(self, group: asyncio.TaskGroup, identity: str, names: Sequence[bytes], n_known: int) -> int:
        """How many there are from the beginning on."""
        end, unknown = n_known, len(names)  # there are `end` at least, and `unknown` at most
        places = [n_known]
        while places:
            began_s = time.monotonic()
            paths = [object_path(identity, MemoryFile(names[place])) for place in places]
            looks = [group.create_task(self._files.store.head(path)) for path in paths]
            heads = [await look for look in looks]
            self._looking.note(1, time.monotonic() - began_s)
            for place, head in zip(places, heads, strict=True):
                if head is None:
                    unknown = place
                    break
                for index in range(end, place + 1):
                    self._add(MemoryFile(names[index]), head)
                end = place + 1
            places = sorted({end + (unknown - end) * i // _N_PLACES for i in range(_N_PLACES)}) if end < unknown else []
        return end

    async def _find_checkpoints(self, identity: str, page: bytes) -> None:
        path = object_path(identity, MemoryFile(page))
        for entry in await self._files.store.objects_from(path.rpartition("/")[0], path.removesuffix(".page")):
            parsed = parse_path(entry.path)
            if parsed is None or parsed[1].page != page:
                return
            self._add(parsed[1], entry)

    def _add(self, file: MemoryFile, entry: StoredObject) -> None:
        if file not in self._files.index and not self._files.is_refused(file, entry.written_s):
            self._files.index.add(file, StoredFile(entry.n_bytes, entry.written_s))
