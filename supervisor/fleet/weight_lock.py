"""WeightLock: the file of a model's weights, held in the host's memory, so that a model that comes back is not read
from disk again. It must not know what loads the file.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import re
from collections.abc import Sequence
from pathlib import Path

_LOG = logging.getLogger("luce.fleet")
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_libc.mlock.argtypes = _libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value


class WeightLock:
    """Pages of files that stay in memory until it is closed."""

    def __init__(self, mapped: Sequence[tuple[int, int]]) -> None:
        self._mapped = list(mapped)

    @classmethod
    def of(cls, model: Path) -> WeightLock:
        """Blocking: reads what is not in memory. Where the system does not allow it (ulimit -l), that is logged, and
        the pages stay as long as nobody else needs the memory."""
        return cls([mapped for file in _parts(model) if (mapped := _lock(file)) is not None])

    def close(self) -> None:
        for address, n_bytes in self._mapped:
            _libc.munmap(address, n_bytes)
        self._mapped.clear()


def _parts(model: Path) -> list[Path]:
    found = _PART.search(model.name)
    if found is None:
        return [model]
    stem = model.name[: found.start()]
    return [model.with_name(f"{stem}-{part:05}-of-{found[2]}.gguf") for part in range(1, int(found[2]) + 1)]


def _lock(file: Path) -> tuple[int, int] | None:
    try:
        return _locked(file)
    except OSError as error:
        _LOG.warning("%s cannot be locked in memory: %s (ulimit -l shows the limit)", file, error.strerror)
        return None


def _locked(file: Path) -> tuple[int, int]:
    """Raises OSError."""
    n_bytes = file.stat().st_size
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        address = _libc.mmap(None, n_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address == _MAP_FAILED:
        raise _error()
    if _libc.mlock(address, n_bytes) != 0:
        error = _error()
        _libc.munmap(address, n_bytes)
        raise error
    return address, n_bytes


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
