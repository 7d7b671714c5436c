"""Data sets as they are published, in files that the user has: lines of JSON, plain or compressed by gzip.

Reads files; judges nothing.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class DataSetError(Exception):
    """Why a file is not the data set that it should be, for people."""


def read_data_set(path: Path, keys: Sequence[str]) -> list[dict[str, Any]]:
    """All of its objects; each has the keys, as texts. Raises DataSetError."""
    try:
        data = path.read_bytes()
        lines = (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode().splitlines()
    except (OSError, EOFError, zlib.error) as error:
        raise DataSetError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    except UnicodeDecodeError:
        raise DataSetError(f"{path} is no text in UTF-8: give the JSONL file as it is published") from None
    found = [_object(path, number, line, keys) for number, line in enumerate(lines, start=1) if line.strip()]
    if not found:
        raise DataSetError(f"{path} is empty")
    return found


def _object(path: Path, number: int, line: str, keys: Sequence[str]) -> dict[str, Any]:
    try:
        read = json.loads(line)
    except (ValueError, RecursionError):
        raise DataSetError(f"{path}, line {number}: no JSON (one object a line is expected)") from None
    missing = [key for key in keys if not (isinstance(read, dict) and isinstance(read.get(key), str))]
    if missing:
        raise DataSetError(f"{path}, line {number}: there is no text under {', '.join(missing)}")
    return dict(read)
