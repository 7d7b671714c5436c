"""What a folder of --disk-cache holds, file by file: pages and checkpoints by model, and the answers beside them.

Only names of exactly the daemon's forms are ours (native/memory/tiers/disk_file_name.h); nothing else is counted or
removed, and no link is followed. A daemon that runs takes a file that has gone for one that it never had.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_IDENTITY = re.compile(r"[0-9a-f]{32}")
_FOLDER = re.compile(r"[0-9a-f]{2}")
_FILE = re.compile(r"([0-9a-f]{2})[0-9a-f]{30}(?:\.page|-[0-9]{1,4}-[0-9a-f]{32}\.tail)(\.tmp-[a-z0-9]{6})?")
_ANSWERS = re.compile(r"answers-[0-9a-f]{16}(\.old)?\.log")
ANSWERS = "answers"


@dataclass(frozen=True, slots=True)
class CacheFile:
    path: Path
    group: str
    """The model's identity, or `answers`."""
    n_bytes: int
    used_s: float
    """When it was last written or read, as time.time() counts."""
    is_page: bool


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """What is kept of one model in one number format."""

    name: str
    n_files: int
    n_pages: int
    n_bytes: int
    first_used_s: float
    last_used_s: float


def list_files(folder: Path) -> Iterator[CacheFile]:
    """Raises OSError where the folder itself cannot be listed; what goes meanwhile is left out."""
    for entry in _entries(folder):
        if _IDENTITY.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            with suppress(FileNotFoundError):
                yield from _of_model(entry)
        elif _ANSWERS.fullmatch(entry.name) and (file := _file(entry, ANSWERS)) is not None:
            yield file


def grouped(files: Iterator[CacheFile] | list[CacheFile]) -> list[CacheGroup]:
    """The latest used first."""
    by_name: dict[str, list[CacheFile]] = {}
    for file in files:
        by_name.setdefault(file.group, []).append(file)
    groups = [
        CacheGroup(
            name,
            len(members),
            sum(file.is_page for file in members),
            sum(file.n_bytes for file in members),
            min(file.used_s for file in members),
            max(file.used_s for file in members),
        )
        for name, members in by_name.items()
    ]
    return sorted(groups, key=lambda group: -group.last_used_s)


def remove(files: list[CacheFile]) -> int:
    """How many bytes are free now. Folders that are empty then go too. Raises OSError."""
    n_bytes = 0
    for file in files:
        with suppress(FileNotFoundError):
            file.path.unlink()
            n_bytes += file.n_bytes
    folders = {file.path.parent for file in files if file.group != ANSWERS}
    for folder in (*folders, *{folder.parent for folder in folders}):
        with suppress(OSError):  # something else is in it, or it has gone
            folder.rmdir()
    return n_bytes


def _of_model(identity: os.DirEntry[str]) -> Iterator[CacheFile]:
    for folder in _entries(Path(identity.path)):
        if not _FOLDER.fullmatch(folder.name) or not folder.is_dir(follow_symlinks=False):
            continue
        for entry in _entries(Path(folder.path)):
            match = _FILE.fullmatch(entry.name)
            if match is not None and match[1] == folder.name and (file := _file(entry, identity.name)) is not None:
                yield file


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)


def _file(entry: os.DirEntry[str], group: str) -> CacheFile | None:
    try:
        if not entry.is_file(follow_symlinks=False):
            return None
        info = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    return CacheFile(Path(entry.path), group, info.st_size, info.st_mtime, entry.name.endswith(".page"))
