"""The verbs and keys of command lines, as commands.json lists them for both codecs. Knows no value and no command."""

from __future__ import annotations

import json
import pkgutil
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Key:
    key: str
    value: str
    """How it is read and written."""
    field: str
    """Where it goes: the path of an attribute."""
    or_file: str | None
    """Where a value goes that begins with @."""
    required: bool


@dataclass(frozen=True, slots=True)
class Verb:
    verb: str
    command: str
    keys: tuple[Key, ...] | None
    places: tuple[str, ...] | None
    generates: bool


def _key(row: dict[str, Any]) -> Key:
    return Key(
        row["key"], row["value"], row.get("field", row["key"]), row.get("or_file"), required=row.get("required", False)
    )


def _verb(row: dict[str, Any]) -> Verb:
    keys = tuple(map(_key, row["keys"])) if "keys" in row else None
    places = tuple(row["places"]) if "places" in row else None
    return Verb(row["verb"], row["command"], keys, places, generates=row.get("generates", False))


def _load() -> tuple[Verb, ...]:
    data = pkgutil.get_data(__name__, "commands.json")
    assert data is not None, "the table lies beside this file"
    return tuple(map(_verb, json.loads(data)["verbs"]))


VERBS = _load()
