"""DiskFiles: what an engine says of its disk cache's files, and what it is told of them.

The engine owns its folder's index; whoever brings files there, or takes them elsewhere, asks here. It must not know
where that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from luce.protocol import (
    MAX_FILES,
    Adopted,
    AdoptFiles,
    FilesLine,
    ListFiles,
    Probed,
    ProbeText,
    RemoteProtocolError,
    WriteText,
)
from luce.supervisor.engine.client import MAX_INLINE_IDS, EngineClient
from luce.supervisor.engine.prompt_file import PromptFile
from luce.supervisor.prefix_cache.page_names import MemoryFile


@dataclass(frozen=True, slots=True)
class FileOnDisk:
    file: MemoryFile
    n_bytes: int


class DiskFiles:
    """All of it raises EngineDied, and EngineError: `unsupported` without a disk cache."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    async def adopt(self, files: Sequence[MemoryFile]) -> Adopted:
        """They have been put into the folder, each whole and under its name; the most wanted first."""
        n_new = n_known = n_missing = 0
        # The last to be adopted is the last to be evicted.
        for begin in reversed(range(0, len(files), MAX_FILES)):
            names = tuple(file.name for file in files[begin : begin + MAX_FILES])
            reply = await self._client.post_call(AdoptFiles(names))
            assert isinstance(reply, Adopted)
            n_new, n_known, n_missing = n_new + reply.n_new, n_known + reply.n_known, n_missing + reply.n_missing
        return Adopted(0, n_new, n_known, n_missing)

    async def since(self, number: int) -> tuple[int, list[FileOnDisk]]:
        """Files that have come since a number, 4,096 at most, in the order in which they came, and the number to go on
        from. Numbers begin anew with each engine."""
        return _listed(await self._client.post_call(ListFiles(number)))

    async def write(self, page: bytes) -> list[FileOnDisk]:
        """The text that ends with this page is written now; its files that are on disk then, from its beginning on.
        Raises EngineError: `bad_args` where the engine does not remember the page."""
        return _listed(await self._client.post_call(WriteText(page.hex())))[1]

    async def probe(self, tokens: Sequence[int], *, salt: int | None = None, salt_from: int | None = None) -> Probed:
        """From where a text could be gone on with. Raises LocalProtocolError, OSError too."""
        if len(tokens) <= MAX_INLINE_IDS:
            reply = await self._client.post_call(ProbeText(tuple(tokens), salt=salt, salt_from=salt_from))
        else:
            file = PromptFile.write(tokens)
            try:
                probe = ProbeText(prompt_path=file.path, salt=salt, salt_from=salt_from)
                reply = await self._client.post_call(probe)
            finally:
                file.remove()
        assert isinstance(reply, Probed)
        return reply


def _listed(reply: object) -> tuple[int, list[FileOnDisk]]:
    assert isinstance(reply, FilesLine)
    return reply.next, [_file(words) for words in reply.files]


def _file(words: str) -> FileOnDisk:
    """Words that a newer engine adds are passed over."""
    name, *more = words.split(":")
    file = MemoryFile.of(name)
    if file is None or not more or not more[0].isdecimal():
        raise RemoteProtocolError(f"a file told as {words[:120]!r}")
    return FileOnDisk(file, int(more[0]))
