"""StoreIndex: which files of the engines' memories the store has, as far as it was listed or asked, and which a text
needs.

Pure. What it does not know of is not fetched; what has gone meanwhile is a miss.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from luce.supervisor.prefix_cache.page_names import PAGE_TOKENS, TOKEN_BYTES, MemoryFile, checkpoint_name

MAX_FILES = 1_000_000


@dataclass(frozen=True, slots=True)
class StoredFile:
    n_bytes: int
    written_s: float


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """Files of a text that the store has, the most wanted first, and how far the text is known with them."""

    files: tuple[MemoryFile, ...]
    n_needed: int
    """The first so many: without one of them it is not known so far."""
    deepest: MemoryFile
    n_tokens: int

    @property
    def needed(self) -> tuple[MemoryFile, ...]:
        return self.files[: self.n_needed]


class StoreIndex:
    def __init__(self) -> None:
        self._files: dict[MemoryFile, StoredFile] = {}
        self._checkpoints: dict[bytes, set[MemoryFile]] = {}  # by page
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, file: MemoryFile) -> bool:
        return file in self._files

    def get(self, file: MemoryFile) -> StoredFile | None:
        return self._files.get(file)

    def since(self, written_s: float) -> list[tuple[MemoryFile, StoredFile]]:
        return [(file, stored) for file, stored in self._files.items() if stored.written_s >= written_s]

    def replace(self, files: Iterable[tuple[MemoryFile, StoredFile]]) -> None:
        """By a new listing."""
        self._files, self._checkpoints, self.n_bytes = {}, {}, 0
        for file, stored in files:
            self.add(file, stored)

    def add(self, file: MemoryFile, stored: StoredFile) -> None:
        if len(self._files) >= MAX_FILES:
            return
        self.discard(file)
        self._files[file] = stored
        self.n_bytes += stored.n_bytes
        if file.checkpoint is not None:
            self._checkpoints.setdefault(file.page, set()).add(file)

    def discard(self, file: MemoryFile) -> None:
        stored = self._files.pop(file, None)
        if stored is None:
            return
        self.n_bytes -= stored.n_bytes
        if file.checkpoint is not None:
            behind = self._checkpoints[file.page]
            behind.discard(file)
            if not behind:
                del self._checkpoints[file.page]

    def plan(
        self, key: bytes, names: Sequence[bytes], *, n_pages: int, has_state: bool, stops: Collection[int]
    ) -> FetchPlan | None:
        """For a text (packed) with these pages, of which the first `n_pages` are at hand. `stops`: positions at which a
        model with state is going to need a checkpoint as well. None: the store has nothing that helps."""
        end = self.n_first_pages(names, n_pages)
        last = self._checkpoint_before(key, names, end, is_needed=has_state)
        if last is None and (has_state or end == n_pages):
            return None
        n_whole = end if last is None else names.index(last.page) + 1
        pages = [MemoryFile(name) for name in names[n_pages:n_whole]]
        n_tokens = n_whole * PAGE_TOKENS + (0 if last is None else last.n_rest)
        wanted = [*([] if last is None else [last]), *pages]
        n_needed = len(wanted)
        if has_state:
            wanted += [file for stop in stops if stop < n_tokens for file in self._checkpoints_at(key, names, stop)]
        return FetchPlan(tuple(dict.fromkeys(wanted)), n_needed, pages[-1] if last is None else last, n_tokens)

    def n_first_pages(self, names: Sequence[bytes], n_known: int) -> int:
        """How many of a text's pages there are from the beginning on, of which so many are at hand."""
        end = n_known
        while end < len(names) and MemoryFile(names[end]) in self._files:
            end += 1
        return end

    def _checkpoint_before(self, key: bytes, names: Sequence[bytes], end: int, *, is_needed: bool) -> MemoryFile | None:
        """The last one at or before the end of so many pages and what follows them."""
        for index in range(end - 1, -1 if is_needed else end - 2, -1):
            found = [file for file in self._checkpoints.get(names[index], ()) if _fits(file, key, index)]
            if found:
                return max(found, key=lambda file: file.n_rest)
        return None

    def _checkpoints_at(self, key: bytes, names: Sequence[bytes], position: int) -> list[MemoryFile]:
        index = position // PAGE_TOKENS - 1
        if not 0 <= index < len(names):
            return []
        behind = self._checkpoints.get(names[index], ())
        return [file for file in behind if file.n_rest == position % PAGE_TOKENS and _fits(file, key, index)]


def _fits(file: MemoryFile, key: bytes, index: int) -> bool:
    """Whether a checkpoint behind the page of this index is one of this text's."""
    begin = (index + 1) * PAGE_TOKENS * TOKEN_BYTES
    rest = key[begin : begin + file.n_rest * TOKEN_BYTES]
    return len(rest) == file.n_rest * TOKEN_BYTES and checkpoint_name(file.page, rest) == file.checkpoint
