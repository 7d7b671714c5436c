"""What real clients sent (tests/data/clients/README.md), and the requests of it that a test wants to send again."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "data" / "clients"
NAMES = ("claude_code", "codex", "opencode", "pi")


@dataclass(frozen=True)
class Recorded:
    client: str
    step: str
    path: str
    headers: dict[str, str]
    _body: dict[str, Any]

    def body(self, **changes: Any) -> dict[str, Any]:
        """A copy of its own, with other values for some fields."""
        return {**copy.deepcopy(self._body), **changes}


@cache
def recorded(client: str) -> dict[str, Recorded]:
    """The requests of a client by step, in the order in which they came."""
    requests = json.loads((FOLDER / f"{client}.json").read_text())["requests"]
    return {
        request["step"]: Recorded(client, request["step"], request["path"], request["headers"], request["body"])
        for request in requests
    }


def all_recorded() -> list[Recorded]:
    return [request for name in NAMES for request in recorded(name).values()]
