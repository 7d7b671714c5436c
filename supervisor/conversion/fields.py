"""Fields: the entries of a configuration's JSON object, checked for type and range as they are read.

A refusal names the file, the entry by its whole path, and what was expected. Null is as good as absent. Knows no names
of entries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from luce.supervisor.conversion.errors import DOWNLOAD_AGAIN, ConversionError, shown

MAX_COUNT = 2**31 - 1  # what llama.cpp keeps such counts in
_MAX_FLOAT32 = 3.4028234e38
_MIN_FLOAT32 = 1.1754944e-38

_CORRECT = f"correct the entry, or {DOWNLOAD_AGAIN}"


class Fields:
    """One JSON object of the file `path`; `prefix` is where it stands there."""

    def __init__(self, path: Path, values: dict[str, Any], prefix: str = "") -> None:
        self.path = path
        self._values = values
        self._prefix = prefix

    def refusal(self, key: str, problem: str, advice: str = _CORRECT) -> ConversionError:
        return ConversionError(self.path, self._prefix + key, problem, advice)

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def names(self) -> Iterable[str]:
        return self._values.keys()

    def raw(self, key: str) -> Any:
        return self._values.get(key)

    def section(self, key: str) -> Fields:
        """The object under `key`; an empty one where there is none. Raises ConversionError."""
        value = self._values.get(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.refusal(key, f"it is {shown(value)}, an object was expected")
        return Fields(self.path, value, f"{self._prefix}{key}.")

    def count(self, key: str, least: int = 1, most: int = MAX_COUNT) -> int:
        """Raises ConversionError, also where there is none."""
        value = self.optional_count(key, least, most)
        if value is None:
            raise self._missing(key)
        return value

    def optional_count(self, key: str, least: int = 1, most: int = MAX_COUNT) -> int | None:
        value = self._values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refusal(key, f"it is {shown(value)}, a whole number was expected")
        if not least <= value <= most:
            raise self.refusal(key, f"it is {shown(value)}, a number from {least} to {most} was expected")
        return value

    def optional_number(self, key: str, *, positive: bool = False) -> float | None:
        """A number that float32 can hold."""
        value = self._values.get(key)
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
        value = self.optional_number(key, positive=True)
        if value is None:
            raise self._missing(key)
        return value

    def optional_flag(self, key: str) -> bool | None:
        value = self._values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.refusal(key, f"it is {shown(value)}, true or false was expected")
        return value

    def optional_text(self, key: str) -> str | None:
        value = self._values.get(key)
        if value is not None and not isinstance(value, str):
            raise self.refusal(key, f"it is {shown(value)}, a text was expected")
        return value

    def optional_texts(self, key: str) -> list[str] | None:
        value = self.optional_list(key)
        for entry in value or ():
            if not isinstance(entry, str):
                raise self.refusal(key, f"{shown(entry)} stands in it, texts were expected")
        return value

    def optional_list(self, key: str) -> list[Any] | None:
        value = self._values.get(key)
        if value is not None and not isinstance(value, list):
            raise self.refusal(key, f"it is {shown(value)}, a list was expected")
        return value

    def _missing(self, key: str) -> ConversionError:
        return self.refusal(key, "it is missing", f"add it, or {DOWNLOAD_AGAIN}")
