"""One value of a configuration: what a type of the dataclasses makes of what people write, in a file or in text.

Raises ValueError with a text for people, which names neither the option nor where it stands: the caller knows both.
"""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from luce.supervisor.config import ByteCount, NumberOrAuto, TokenCount, TokensOrAuto

_ON = frozenset({"1", "true", "on", "yes"})
_OFF = frozenset({"0", "false", "off", "no"})
_UNSET = "none"
_COUNTS = (ByteCount, TokenCount, NumberOrAuto, TokensOrAuto)
_AUTO = "auto"
_SHIFTS = {"K": 10, "M": 20, "G": 30, "T": 40}
_TOKENS = re.compile(r"([0-9]{1,19})([KM]?)", re.IGNORECASE)
_BYTES = re.compile(r"([0-9]{1,19}|[0-9]{1,12}\.[0-9]{1,6}(?= *[KMGT])) *([KMGT]?)(?:i?B)?", re.IGNORECASE)


def byte_count(text: str) -> int:
    """A number of bytes, with K, M, G or T behind it for powers of 1024; 1.5G and 8 GiB are understood too."""
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a number of bytes (examples: 1000, 64M, 8G)")
    return int(Decimal(match[1]) * (1 << _SHIFTS.get(match[2].upper(), 0)))


def token_count(text: str) -> int:
    """A number of tokens, with K or M behind it for powers of 1024."""
    match = _TOKENS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a number of tokens (examples: 4096, 32K)")
    return int(match[1]) << _SHIFTS.get(match[2].upper(), 0)


def read_item(annotation: Any, item: object, folder: Path) -> object:
    """The value that an item of a TOML file is. Paths are meant from `folder` on."""
    inner, optional = _without_none(annotation)
    if optional and item == _UNSET and _UNSET not in get_args(inner):
        return None
    if inner in _COUNTS:
        return _count(inner, item)
    if get_origin(inner) is Literal:
        return _one_of(inner, {True: "on", False: "off"}[item] if isinstance(item, bool) else item)
    if get_origin(inner) is tuple:
        return _texts(item)
    if get_origin(inner) is Mapping:
        return _of_type(dict, item, "a table: { key = value }")
    if inner is bool:
        return _of_type(bool, item, "true or false")
    if inner is int:
        return _whole(item)
    if inner is float:
        return _real(item)
    if inner is str:
        return _of_type(str, item, "a text in quotes")
    assert inner is Path, annotation
    path = Path(_of_type(str, item, "a path in quotes"))
    if "\0" in str(path):
        raise ValueError("a path cannot hold a zero byte")
    return folder / path.expanduser()


def read_text(annotation: Any, text: str) -> object:
    """The value that a text of the environment is; the items of a list have commas between them."""
    inner, optional = _without_none(annotation)
    if optional and text == _UNSET and _UNSET not in get_args(inner):
        return None
    if inner is bool:
        return _switch(text)
    if inner is int or inner is float:
        return read_item(inner, _number(inner, text), Path())
    if inner == NumberOrAuto:
        return read_item(inner, text if text == _AUTO else _number(int, text), Path())
    if get_origin(inner) is Mapping:
        return read_item(inner, _object(text), Path())
    if get_origin(inner) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return read_item(inner, text, Path())


def _count(annotation: Any, item: object) -> object:
    if annotation in (NumberOrAuto, TokensOrAuto) and item == _AUTO:
        return _AUTO
    if isinstance(item, str) and annotation != NumberOrAuto:
        return byte_count(item) if annotation == ByteCount else token_count(item)
    return _whole(item)


def _object(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{text!r} is not JSON") from None


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) in {Union, types.UnionType}:
        (inner,) = (entry for entry in get_args(annotation) if entry is not type(None))
        return inner, True
    return annotation, False


def _switch(text: str) -> bool:
    word = text.strip().lower()
    if word not in _ON | _OFF:
        raise ValueError(f"{text!r} is neither on (1, true, yes) nor off (0, false, no)")
    return word in _ON


def _number(kind: type[int | float], text: str) -> object:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a {'whole ' if kind is int else ''}number") from None


def _whole(item: object) -> int:
    if isinstance(item, bool) or not isinstance(item, int):
        raise ValueError(f"{item!r} is not a whole number")  # noqa: TRY004  the caller's file is wrong, not the code
    if item < 0:
        raise ValueError("it must be 0 or more")
    return item


def _real(item: object) -> float:
    if isinstance(item, bool) or not isinstance(item, int | float) or not math.isfinite(item):
        raise ValueError(f"{item!r} is not a number")
    if item < 0:
        raise ValueError("it must be 0 or more")
    return float(item)


def _one_of(literal: Any, item: object) -> object:
    choices = get_args(literal)
    if item not in choices:
        raise ValueError(f"{item!r} is not one of {', '.join(choices)}")
    return item


def _texts(item: object) -> tuple[str, ...]:
    items = [item] if isinstance(item, str) else item
    if not isinstance(items, Sequence) or not all(isinstance(entry, str) for entry in items):
        raise ValueError('it must be a list of texts: ["one", "two"]')
    return tuple(items)


def _of_type(kind: type[Any], item: object, what: str) -> Any:
    if not isinstance(item, kind):
        raise ValueError(f"{item!r} is not {what}")  # noqa: TRY004  as in _whole
    return item


def read_environment_table(item: object) -> dict[str, str]:
    """Variables for an engine."""
    if not isinstance(item, Mapping) or not all(isinstance(value, str) for value in item.values()):
        raise ValueError('it must be a table of texts: { CUDA_VISIBLE_DEVICES = "0" }')
    return dict(item)
