"""Files that only their owner may read, written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def behind_links(path: Path) -> Path:
    """The regular file that `path` is or leads to, or where one can be made. Raises OSError: it leads to a device, a
    pipe or a folder, or nowhere."""
    real = Path(os.path.realpath(path))
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(real.stat().st_mode):
            raise FileExistsError(errno.EEXIST, "it is there already, and is no file", str(path))
    return real


def write_private(path: Path, data: bytes) -> None:
    """Replaces `path`, or what it is a link to. Raises OSError."""
    path = behind_links(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(path.parent))
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
