"""The table of the engine's options, options.json, as data: luced, the command line and the reference page are made of
it. It must not know click, nor what an option does.
"""

from __future__ import annotations

import json
import pkgutil
from dataclasses import dataclass
from functools import cache
from typing import Any

# What belongs to a process that is started by hand, and to luced alone; or what a process is for.
PROCESS_OPTIONS = frozenset(
    {
        "embedding",
        "stream_fd",
        "mux",
        "die_with_parent",
        "rpc_worker",
        "rpc_tensor_cache",
        "plan",
        "plan_gpus",
        "plan_host",
        "version",
        "help",
    }
)


@dataclass(frozen=True, slots=True)
class EngineOption:
    name: str
    """Without its dashes in front: `host-cache`."""
    kind: str
    help: str
    takes: str | None = None
    """What the value is called; None: a switch."""
    least: int = 0
    most: int = 0
    choices: tuple[str, ...] = ()
    field: str = ""
    """Of DaemonConfig."""
    aliases: tuple[str, ...] = ()
    """Older names, which go on working."""

    @classmethod
    def of(cls, row: dict[str, Any]) -> EngineOption:
        given = {key: row[key] for key in ("name", "kind", "help", "takes", "least", "most") if key in row}
        field = row.get("field", row["name"].replace("-", "_"))
        return cls(**given, choices=tuple(row.get("choices", ())), field=field, aliases=tuple(row.get("aliases", ())))


@dataclass(frozen=True, slots=True)
class GoneOption:
    """What older drivers took, and what is accepted and does nothing."""

    name: str
    takes: str | None = None
    why: str | None = None
    """What to say of it; None: nothing."""


@cache
def engine_options() -> dict[str, EngineOption]:
    """By field, in the order in which they are shown."""
    return {option.field: option for option in map(EngineOption.of, _table()["options"])}


@cache
def gone_options() -> tuple[GoneOption, ...]:
    return tuple(GoneOption(**row) for row in _table()["gone"])


@cache
def _table() -> dict[str, Any]:
    data = pkgutil.get_data(__name__, "options.json")
    assert data is not None, "the table lies beside this file"
    table: dict[str, Any] = json.loads(data)
    return table
