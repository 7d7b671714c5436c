"""Finds transcripts and reads them, whichever client has written them.

Whatever stands in a file, reading it ends with a session: lines that are torn, foreign or absurd are left out and
counted. Knows no model.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from luce.supervisor.evaluating.transcripts.claude_transcript import read_claude
from luce.supervisor.evaluating.transcripts.codex_transcript import ITEM_KINDS, LINE_KINDS, read_codex
from luce.supervisor.evaluating.transcripts.conversation import Session, parse_line

MAX_LINE_BYTES = 64 << 20
_N_LINES_TO_TELL = 20


def find_transcripts(paths: Iterable[Path]) -> list[Path]:
    """Files as they are given, and all *.jsonl below folders, by name."""
    found: list[Path] = []
    for path in paths:
        found += sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
    return list(dict.fromkeys(found))


def read_transcript(path: Path) -> Session:
    """Raises OSError only."""
    with path.open("rb") as file:
        return read_session(path.stem, _read_lines(file))


def read_session(name: str, lines: Iterable[bytes]) -> Session:
    """A session from its lines. Never raises, whatever they are."""
    unread: Counter[str] = Counter()
    objects = _parse(lines, unread)
    first = list(itertools.islice(objects, _N_LINES_TO_TELL))
    read = read_codex if any(map(_is_codex, first)) else read_claude
    session = read(name, itertools.chain(first, objects))
    return replace(session, left_out=session.left_out + unread)


def _is_codex(line: dict[str, Any]) -> bool:
    kind = line.get("type")
    if not isinstance(kind, str):
        return False
    return (kind in LINE_KINDS and "payload" in line) or (kind in ITEM_KINDS and "message" not in line)


def _parse(lines: Iterable[bytes], unread: Counter[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if not line.strip():
            continue
        parsed = parse_line(line) if len(line) <= MAX_LINE_BYTES else "lines that are too long"
        if isinstance(parsed, str):
            unread[parsed] += 1
        else:
            yield parsed


def _read_lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines, none of them much longer than MAX_LINE_BYTES: the rest of such a one is skipped."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        yield line
        while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES + 1)
