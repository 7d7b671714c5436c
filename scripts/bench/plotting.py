"""matplotlib for pictures in files, where it is installed. It must not know what is drawn."""

from __future__ import annotations

import importlib
from typing import Any


def open_pyplot() -> Any | None:
    """matplotlib.pyplot, which opens no window; None: it is not installed (`pip install 'luce-daemon[bench]'`)."""
    try:
        matplotlib = importlib.import_module("matplotlib")
        matplotlib.use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError:
        return None
