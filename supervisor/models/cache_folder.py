"""Where luce-daemon keeps what it can make again: a folder of the user's. It must not know what is kept there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_NAME = "luce-daemon"


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Below XDG_CACHE_HOME, else below ~/.cache. None: there is no home folder either."""
    named = environ.get("XDG_CACHE_HOME", "")
    if named.startswith("/"):  # the specification: a relative one is to be ignored
        return Path(named) / _NAME
    try:
        return Path.home() / ".cache" / _NAME
    except RuntimeError:
        return None
