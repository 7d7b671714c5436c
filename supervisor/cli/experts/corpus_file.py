"""A corpus: a text a line, as a JSON object with `name` and `text`. Writes and reads it, and says which texts are held
back. Knows no session and no model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from functools import partial
from hashlib import sha256
from pathlib import Path

from luce.supervisor.cli.entry import EXIT_REFUSED, Failure
from luce.supervisor.cli.experts.sessions import SessionText

_HASH_BYTES = 8


def is_held_back(name: str, share: float) -> bool:
    """The same answer each time: by a hash of the name, whatever else is in the corpus."""
    digest = sha256(name.encode(errors="replace")).digest()
    return int.from_bytes(digest[:_HASH_BYTES], "big") < int(share * (1 << 8 * _HASH_BYTES))


def write_corpus(path: Path, texts: Iterable[SessionText]) -> None:
    """Raises OSError."""
    with open(path, "w", encoding="utf-8", opener=partial(os.open, mode=0o600)) as file:  # people's conversations
        file.writelines(json.dumps({"name": text.name, "text": text.text}, ensure_ascii=False) + "\n" for text in texts)


def read_corpus(path: Path) -> list[SessionText]:
    """Raises Failure, also where there is no text."""
    found = []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    found.append(_read_line(f"{path}:{number}", line))
    except OSError as error:
        raise Failure(f"--corpus {path}: {error.strerror}", EXIT_REFUSED) from None
    if not found:
        raise Failure(f"--corpus {path} has no text", EXIT_REFUSED)
    return found


def _read_line(place: str, line: bytes) -> SessionText:
    try:
        read = json.loads(line)
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict) or not all(isinstance(read.get(key), str) for key in ("name", "text")):
        raise Failure(f'{place}: not {{"name": …, "text": …}}, as luce experts corpus writes it', EXIT_REFUSED)
    return SessionText(read["name"], read["text"].encode(errors="replace").decode())
