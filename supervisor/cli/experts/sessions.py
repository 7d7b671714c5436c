"""Reads the sessions that coding agents leave, Claude Code's and Codex's, into texts.

What people, models and tools said, in the order of the file. Left out are system prompts: they are the same in each
session, and would outweigh all else. Neither format is documented by its maker; a line that cannot be read is counted,
whatever it is. Knows no model.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

_MOST_LINE_BYTES = 64 << 20
_SAID = ("text", "thinking", "content", "output", "summary")
_GIVEN = ("input", "arguments", "action")


@dataclass(frozen=True, slots=True)
class SessionText:
    name: str
    text: str


@dataclass(slots=True)
class SessionReader:
    """Reads one session after the other. A line that an earlier session has too, as one that was continued in a file of
    its own does, is not read again: else held-back texts would be known ones."""

    left_out: Counter[str] = field(default_factory=Counter)
    _known: set[str] = field(default_factory=set)

    def read(self, path: Path) -> SessionText:
        """Raises OSError only."""
        with path.open("rb") as file:
            return self.read_lines(path.stem, _lines(file))

    def read_lines(self, name: str, lines: Iterable[bytes]) -> SessionText:
        """Never raises, whatever they are."""
        said = []
        for line in lines:
            try:
                said += self._said(line) if line.strip() else []
            except (ValueError, RecursionError):
                self.left_out["no JSON"] += 1
        return SessionText(name, "\n\n".join(said))

    def _said(self, data: bytes) -> list[str]:
        """Raises ValueError or RecursionError."""
        line = json.loads(data.decode(errors="replace")) if len(data) <= _MOST_LINE_BYTES else None
        if not isinstance(line, dict):
            self.left_out["no object" if len(data) <= _MOST_LINE_BYTES else "too long"] += 1
            return []
        uuid = line.get("uuid")
        if isinstance(uuid, str):
            if uuid in self._known:
                self.left_out["known from before"] += 1
                return []
            self._known.add(uuid)
        return list(_claude(line) if line.get("type") in ("user", "assistant") else _codex(line))


def find_sessions(paths: Iterable[Path]) -> list[Path]:
    """Files as they are given, and all *.jsonl below folders, by name."""
    found: list[Path] = []
    for path in paths:
        found += sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
    return list(dict.fromkeys(found))


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines, none of them much longer than may be: the rest of such a one is skipped."""
    while line := file.readline(_MOST_LINE_BYTES + 1):
        yield line
        while len(line) > _MOST_LINE_BYTES and not line.endswith(b"\n"):
            line = file.readline(_MOST_LINE_BYTES + 1)


def _claude(line: dict[str, Any]) -> Iterator[str]:
    """A message of a user, who also brings what tools say, or of the model: its blocks."""
    message = line.get("message")
    if isinstance(message, dict):
        yield from _texts(message.get("content"))


def _codex(line: dict[str, Any]) -> Iterator[str]:
    """An item of the Responses API; files of 2025 have them without an envelope. Events only repeat them."""
    item = line.get("payload") if line.get("type") == "response_item" else line
    if not isinstance(item, dict):
        return
    kind, role = item.get("type"), item.get("role")
    is_said = kind == "message" and role in ("user", "assistant")
    if is_said or kind == "reasoning" or (isinstance(kind, str) and kind.endswith(("_call", "_call_output"))):
        yield from _texts(item)


def _texts(value: object) -> Iterator[str]:
    """What is said in a block, in blocks, or in what a tool is given: texts as they are, values of calls as JSON."""
    if isinstance(value, str):
        if value.strip():
            yield value.encode(errors="replace").decode()
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, dict):
        if value.get("type") == "tool_use" or str(value.get("type")).endswith("_call"):
            yield from _texts(_call(value))
        else:
            for key in _SAID:
                yield from _texts(value.get(key))


def _call(value: dict[str, Any]) -> str:
    given = next((value[key] for key in _GIVEN if key in value), None)
    return (
        f"{value.get('name') or 'shell'} {given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)}"
    )
