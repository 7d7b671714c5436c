"""Files that a command was told to write: whole or not at all. Knows nothing of what it writes."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from luce.supervisor.cli.entry import EXIT_REFUSED, Failure


def write_file(path: Path, data: bytes, option: str) -> None:
    """Whole or not at all; `option` named the place. Raises Failure."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise Failure(f"{option} {path}: {error.strerror}", EXIT_REFUSED) from None
