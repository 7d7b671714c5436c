"""Which converted drafts are kept: those used of late, within a number of bytes. A file that goes is made again when
its checkpoint is named again; a process that has it loaded keeps it.

Knows files by their names and times, and nothing of what is in them.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

MOST_BYTES = 64 << 30
MOST_UNUSED_S = 90 * 24 * 3600.0

_CONVERTED = re.compile(r".*-q8_0-[0-9a-f]{32}\.gguf")


def note_use(kept: Path) -> None:
    """Its time says when it was used last."""
    with suppress(OSError):  # somebody else's file, or a folder that cannot be written: it is used all the same
        os.utime(kept)


def prune(
    folder: Path, kept: Path, *, most_bytes: int = MOST_BYTES, most_unused_s: float = MOST_UNUSED_S
) -> list[Path]:
    """Removes what was not used for so long, and of the others those used longest ago, until all fit; never `kept`.
    Returns what went."""
    sizes: dict[Path, int] = {}
    times: dict[Path, float] = {}
    for path in folder.iterdir():
        with suppress(OSError):
            if _CONVERTED.fullmatch(path.name) and path.is_file():
                sizes[path], times[path] = path.stat().st_size, path.stat().st_mtime
    n_bytes, now, gone = sum(sizes.values()), time.time(), []
    for path in sorted(sizes.keys() - {kept}, key=lambda one: times[one]):
        if now - times[path] <= most_unused_s and n_bytes <= most_bytes:
            break
        with suppress(OSError):
            path.unlink()
            path.with_suffix(".lock").unlink(missing_ok=True)
            n_bytes -= sizes[path]
            gone.append(path)
    return gone
