"""The verbs, keys and records of the protocol, as commands.json lists them for both codecs. Knows no value and no
command."""

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


def _key(row: dict[str, Any], within: str = "") -> Key:
    field = within + row.get("field", row["key"])
    return Key(row["key"], row["value"], field, row.get("or_file"), required=row.get("required", False))


def _record(record: dict[str, Any]) -> tuple[Key, ...]:
    return tuple(_key(row) for row in record["fields"] if "key" in row)


def _verb(row: dict[str, Any], records: dict[str, Any]) -> Verb:
    places = tuple(row["places"]) if "places" in row else None
    return Verb(row["verb"], row["command"], _keys(row, records), places, generates=row.get("generates", False))


def _keys(verb: dict[str, Any], records: dict[str, Any]) -> tuple[Key, ...] | None:
    """A record stands for its keys."""
    if "keys" not in verb:
        return None
    keys: list[Key] = []
    for row in verb["keys"]:
        if "record" in row:
            keys += [_key(inner, f"{row['field']}.") for inner in records[row["record"]]["fields"]]
        else:
            keys.append(_key(row))
    return tuple(keys)


def _load() -> dict[str, Any]:
    data = pkgutil.get_data(__name__, "commands.json")
    assert data is not None, "the table lies beside this file"
    table: dict[str, Any] = json.loads(data)
    return table


_TABLE = _load()
_RECORDS = {record["record"]: record for record in _TABLE["records"]}
VERBS = tuple(_verb(row, _RECORDS) for row in _TABLE["verbs"])
RECORDS = {name: _record(record) for name, record in _RECORDS.items()}
"""The fields that a record has on a line."""

_ENUMS = {enum["enum"]: enum["values"] for enum in _TABLE["enums"]}
SAMPLING_DEFAULTS: dict[str, Any] = {
    _key(row).field: _ENUMS.get(row["default"], row["default"]) if isinstance(row["default"], str) else row["default"]
    for row in _RECORDS["SamplingArgs"]["fields"]
    if "default" in row
}
"""What the daemon does where a line does not say, by field."""
