"""Pictures for --plot. Knows matplotlib, which the extra `bench` installs; not what is drawn."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from luce.supervisor.cli.entry import EXIT_BAD_ARGS, EXIT_REFUSED, Failure


def open_pyplot() -> Any:
    """matplotlib.pyplot, which opens no window. Raises Failure."""
    try:
        importlib.import_module("matplotlib").use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError:
        raise Failure("--plot needs matplotlib: pip install 'luce-daemon[bench]'", EXIT_BAD_ARGS) from None


def save_figure(pyplot: Any, figure: Any, path: Path) -> None:
    """As the ending of its name says. Raises Failure."""
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise Failure(f"--plot {path}: {error}", EXIT_REFUSED) from None
    pyplot.close(figure)
