"""LocalFolder: an engine's disk cache as a folder of files, from which they are taken and into which they are put.

Blocks, so it is called in threads. Files that it puts there appear whole or not at all; what it leaves when it is
killed has the form of luced's own scratch files, which the next luced removes.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import string
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from luce.supervisor.prefix_cache.page_names import MemoryFile
from luce.supervisor.scheduling.engine_handle import EngineHandle

_LETTERS = string.ascii_lowercase + string.digits
_FOLDER_MODE = 0o700
_FILE_MODE = 0o600


class LocalFolder:
    def __init__(self, disk_cache: Path, identity: str) -> None:
        self.identity = identity
        self._folder = disk_cache / identity

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalFolder) and self._folder == other._folder

    def __hash__(self) -> int:
        return hash(self._folder)

    def has(self, file: MemoryFile) -> bool:
        return self._path(file).exists()

    def n_first_pages(self, names: Sequence[bytes]) -> int:
        """Of these pages, how many are there from the first one on."""
        gone = (index for index, name in enumerate(names) if not self.has(MemoryFile(name)))
        return next(gone, len(names))

    def read(self, file: MemoryFile) -> bytes | None:
        """None: it is not there any more. Raises OSError."""
        with suppress(FileNotFoundError):
            return self._path(file).read_bytes()
        return None

    def files(self) -> list[MemoryFile]:
        """All that there are. Raises OSError."""
        found = (MemoryFile.of(path.name) for path in self._folder.glob("[0-9a-f][0-9a-f]/*"))
        return [file for file in found if file is not None]

    def put(self, file: MemoryFile, content: memoryview) -> None:
        """Raises OSError."""
        path = self._path(file)
        path.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        scratch = path.with_name(f"{path.name}.tmp-{''.join(secrets.choice(_LETTERS) for _ in range(6))}")
        fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
        try:
            with os.fdopen(fd, "wb") as opened:
                fcntl.flock(opened, fcntl.LOCK_EX)  # by which luced knows that its writer lives
                opened.write(content)
                opened.flush()
                os.fsync(opened.fileno())
                scratch.rename(path)
        except BaseException:
            with suppress(OSError):
                scratch.unlink()
            raise

    def _path(self, file: MemoryFile) -> Path:
        return self._folder / file.folder / file.name


def folder_of(handle: EngineHandle) -> LocalFolder | None:
    """None: it has no disk cache, or has never been there."""
    path, info = handle.monitor.daemon_config.disk_cache, handle.info
    return None if path is None or info is None else LocalFolder(path, info.identity)
