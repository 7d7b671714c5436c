"""Model files that the command line names: looked at before anything is started, so that the error names the option.

The same exit code as the daemon's own for a model that it cannot load. Knows paths, and a GGUF file's first four bytes.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from luce.supervisor.cli.entry import EXIT_START_FAILED, Failure
from luce.supervisor.locate import NotInstalledError, packaged_model

_MAGIC = b"GGUF"
_CHECKPOINT = ("config.json", "model.safetensors")


def read_model(model: Path | None) -> Path:
    """The model's path, checked. Raises Failure."""
    if model is None:
        try:
            return packaged_model()
        except NotInstalledError as error:
            raise Failure(str(error), EXIT_START_FAILED) from error
    mode = _mode_of("--model", model)
    if stat.S_ISDIR(mode):
        raise Failure(f"--model {model} is a folder: name the .gguf file in it", EXIT_START_FAILED)
    if not stat.S_ISREG(mode):
        raise Failure(f"--model {model} is no regular file: name a GGUF file", EXIT_START_FAILED)
    return model


def check_draft(draft: Path) -> None:
    """A drafter is a GGUF file or a folder with a checkpoint or a GGUF file. Raises Failure."""
    mode = _mode_of("--draft", draft)
    if stat.S_ISDIR(mode):
        _check_draft_folder(draft)
    elif not stat.S_ISREG(mode):
        raise Failure(
            f"--draft {draft} is no regular file: name a GGUF file or a checkpoint's folder", EXIT_START_FAILED
        )
    elif _first_bytes(draft) != _MAGIC:
        raise Failure(
            f"--draft {draft} is no GGUF file (it does not begin with the letters GGUF): name one, or the folder of a"
            f" Hugging Face checkpoint",
            EXIT_START_FAILED,
        )


def _check_draft_folder(folder: Path) -> None:
    missing = [name for name in _CHECKPOINT if not (folder / name).is_file()]
    if missing and not any(_first_bytes(path) == _MAGIC for path in sorted(folder.glob("*.gguf"))):
        raise Failure(
            f"--draft {folder}: the folder has no {' and no '.join(missing)}; name a GGUF file or a Hugging Face"
            f" checkpoint's folder",
            EXIT_START_FAILED,
        )


def _mode_of(option: str, path: Path) -> int:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        raise Failure(f"{option} {path}: there is no such file", EXIT_START_FAILED) from None
    except OSError as error:
        raise Failure(f"{option} {path}: {os.strerror(error.errno or 0)}", EXIT_START_FAILED) from None


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC))
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}", EXIT_START_FAILED) from None
