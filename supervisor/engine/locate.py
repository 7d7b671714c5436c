"""Where the installed parts are: the native program, the text library, the packaged models.

Knows the layout of the package (cmake/Install.cmake writes it) and nothing of what the parts do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

BINARY_VARIABLE = "LUCE_DAEMON_BINARY"
PACKAGED_MODEL = "luce-tiny-Q8_0.gguf"
PACKAGED_DRAFT = "luce-tiny-dflash-Q8_0.gguf"

_DISTRIBUTION = "luce-daemon"


class NotInstalledError(Exception):
    """A part of the package is not where the installation puts it."""


def find_luced(environ: Mapping[str, str] = os.environ) -> Path:
    """The native daemon: what LUCE_DAEMON_BINARY names, else the one that was installed with this package."""
    override = environ.get(BINARY_VARIABLE, "")
    if override != "":
        binary = Path(override)
        if not binary.is_file() or not os.access(binary, os.X_OK):
            raise NotInstalledError(f"{BINARY_VARIABLE}={override} names no executable file: correct or unset it")
        return binary.absolute()
    return _installed("luce/bin/luced")


def find_text_library() -> Path:
    """The shared library that `luce.supervisor.text` calls."""
    return _installed("luce/lib/libluce_text.so")


def packaged_model() -> Path:
    """The small model that comes with the package."""
    return _installed(f"luce/models/{PACKAGED_MODEL}")


def packaged_draft() -> Path:
    """The drafter of the packaged model."""
    return _installed(f"luce/models/{PACKAGED_DRAFT}")


def _installed(relative: str) -> Path:
    try:
        package = distribution(_DISTRIBUTION)
    except PackageNotFoundError as missing:
        raise NotInstalledError(
            f"the package {_DISTRIBUTION} is not installed for this Python: run `pip install .` in its repository"
        ) from missing
    path = Path(str(package.locate_file(relative)))
    if not path.is_file():
        raise NotInstalledError(
            f"{path} is missing: the installation is incomplete; run `pip install --force-reinstall .` again"
        )
    return path
