"""Files of a checkpoint, opened and parsed without trusting them: only regular ones, only so large, only strict JSON.

Whatever is wrong ends in a ConversionError. Knows nothing of what the files mean.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from luce.supervisor.conversion.errors import DOWNLOAD_AGAIN, ConversionError

_MAX_NUMBER_LETTERS = 64  # of an integer in JSON: Python takes quadratic time for long ones


@contextmanager
def open_regular(path: Path, advice: str = DOWNLOAD_AGAIN) -> Iterator[tuple[BinaryIO, int]]:
    """The file and its size in bytes; links are followed. Raises ConversionError, also for what the block reads."""
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:  # Path.open takes no opener
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConversionError(path, "", "it is no regular file", advice)
            yield file, status.st_size
    except FileNotFoundError:
        raise ConversionError(path, "", "there is no such file", advice) from None
    except OSError as error:
        raise ConversionError(path, "", error.strerror or "it cannot be read", advice) from error


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe would wait for its writer


def read_json_file(path: Path, max_bytes: int, advice: str = DOWNLOAD_AGAIN) -> dict[str, Any]:
    """The object that the file holds. Raises ConversionError."""
    with open_regular(path, advice) as (file, n_bytes):
        if n_bytes > max_bytes:
            raise ConversionError(
                path, "", f"it has {n_bytes:,} bytes, more than the {max_bytes:,} that are read", advice
            )
        raw = file.read(max_bytes)
    return parse_json_object(raw, path, "", advice)


def parse_json_object(raw: bytes, path: Path, field: str, advice: str = DOWNLOAD_AGAIN) -> dict[str, Any]:
    """Strict: UTF-8, no key twice, no NaN. Raises ConversionError."""
    try:
        value = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_without_repetition,
            parse_constant=_refuse_constant,
            parse_int=_short_integer,
        )
    except RecursionError:
        raise ConversionError(path, field, "it is nested too deeply", advice) from None
    except ValueError as error:
        raise ConversionError(path, field, f"it is no JSON ({str(error)[:100]})", advice) from None
    if not isinstance(value, dict):
        raise ConversionError(path, field, "it holds no JSON object", advice)
    return value


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {ascii(twice)[:40]} stands twice")
    return values


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _short_integer(text: str) -> int:
    if len(text) > _MAX_NUMBER_LETTERS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)
