"""What a checkpoint's files and JSON objects hold, read without trust: regular files, so large, strict JSON, by type.

Whatever is wrong ends in a ConversionError, which names the file, the entry by its whole path and what to do. Knows no
names of entries.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

DOWNLOAD_AGAIN = "download the checkpoint again"
_CORRECT = f"correct the entry, or {DOWNLOAD_AGAIN}"

MAX_COUNT = 2**31 - 1  # what llama.cpp keeps such counts in
_MAX_FLOAT32, _MIN_FLOAT32 = 3.4028234e38, 1.1754944e-38
_MAX_NUMBER_LETTERS = 64  # of an integer in JSON: Python takes quadratic time for long ones
_KINDS: dict[type, str] = {
    int: "a whole number", bool: "true or false", str: "a text", list: "a list", dict: "an object",
}  # fmt: skip

_T = TypeVar("_T")


class ConversionError(Exception):
    """The checkpoint, its target or the place for the result is no good."""

    def __init__(self, path: Path, field: str, problem: str, advice: str = DOWNLOAD_AGAIN) -> None:
        where = f"{path}: {field}: " if field else f"{path}: "
        super().__init__(f"{where}{problem}; {advice}")
        self.path = path
        self.field = field


def shown(value: object) -> str:
    """A value as an error quotes it: short, on one line, whatever it is."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**20:
        return "a number of more than 20 digits"
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)} entries"
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Fields:
    """One JSON object of the file `path`; `prefix` is where it stands there. Null is as good as absent. All methods
    raise ConversionError."""

    def __init__(self, path: Path, values: dict[str, Any], prefix: str = "") -> None:
        self.path = path
        self.values = values
        self._prefix = prefix

    def refusal(self, key: str, problem: str, advice: str = _CORRECT) -> ConversionError:
        return ConversionError(self.path, self._prefix + key, problem, advice)

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def optional(self, key: str, kind: type[_T]) -> _T | None:
        value = self.values.get(key)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise self.refusal(key, f"it is {shown(value)}, {_KINDS[kind]} was expected")
        return value

    def section(self, key: str) -> Fields:
        """The object under `key`; an empty one where there is none."""
        return Fields(self.path, self.optional(key, dict) or {}, f"{self._prefix}{key}.")

    def optional_count(self, key: str, least: int = 1, most: int = MAX_COUNT) -> int | None:
        value = self.optional(key, int)
        if value is not None and not least <= value <= most:
            raise self.refusal(key, f"it is {shown(value)}, a number from {least} to {most} was expected")
        return value

    def count(self, key: str, least: int = 1, most: int = MAX_COUNT) -> int:
        return self._there(key, self.optional_count(key, least, most))

    def optional_number(self, key: str, *, positive: bool = False) -> float | None:
        """A number that float32 can hold."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refusal(key, f"it is {shown(value)}, a number was expected")
        if not -_MAX_FLOAT32 <= value <= _MAX_FLOAT32 or math.isnan(value):
            raise self.refusal(key, f"it is {shown(value)}, more than a float32 can hold")
        if positive and value < _MIN_FLOAT32:
            raise self.refusal(key, f"it is {shown(value)}, a number above 0 was expected")
        return float(value)

    def positive_number(self, key: str) -> float:
        return self._there(key, self.optional_number(key, positive=True))

    def optional_texts(self, key: str) -> list[str] | None:
        value: list[Any] | None = self.optional(key, list)
        for entry in value or ():
            if not isinstance(entry, str):
                raise self.refusal(key, f"{shown(entry)} stands in it, texts were expected")
        return value

    def _there(self, key: str, value: _T | None) -> _T:
        if value is None:
            raise self.refusal(key, "it is missing", f"add it, or {DOWNLOAD_AGAIN}")
        return value


@contextmanager
def open_regular(path: Path, advice: str = DOWNLOAD_AGAIN) -> Iterator[tuple[BinaryIO, int]]:
    """The file and its size in bytes; links are followed. Raises ConversionError, also for what the block reads."""
    try:
        # Path.open takes no opener, and without O_NONBLOCK a pipe would wait for its writer.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConversionError(path, "", "it is no regular file", advice)
            yield file, status.st_size
    except FileNotFoundError:
        raise ConversionError(path, "", "there is no such file", advice) from None
    except OSError as error:
        raise ConversionError(path, "", error.strerror or "it cannot be read", advice) from error


def read_json_file(path: Path, max_bytes: int, advice: str = DOWNLOAD_AGAIN) -> dict[str, Any]:
    """The object that the file holds. Raises ConversionError."""
    with open_regular(path, advice) as (file, n_bytes):
        if n_bytes > max_bytes:
            problem = f"it has {n_bytes:,} bytes, more than the {max_bytes:,} that are read"
            raise ConversionError(path, "", problem, advice)
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
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"the key {ascii(key)[:40]} stands twice")
        values[key] = value
    return values


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _short_integer(text: str) -> int:
    if len(text) > _MAX_NUMBER_LETTERS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)
