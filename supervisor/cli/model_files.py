"""Model files that the command line names: looked at before anything is started, so that the error names the option;
and their text side for the length of one command.

The same exit code as the daemon's own for a model that it cannot load. Knows paths; what is in a file only drafts do.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from luce.supervisor.cli.entry import EXIT_REFUSED, EXIT_START_FAILED, Failure, say
from luce.supervisor.engine.locate import NotInstalledError, packaged_draft, packaged_model

if TYPE_CHECKING:
    from luce.supervisor.text import TextModel

NO_DRAFT = Path("none")  # what --draft takes to have the packaged model go without


def read_model(model: Path | None) -> Path:
    """The model's path, checked. Raises Failure."""
    if model is None:
        try:
            return packaged_model()
        except NotInstalledError as error:
            raise Failure(str(error), EXIT_START_FAILED) from error
    check_file(model, "--model")
    return model


def is_packaged(model: Path) -> bool:
    try:
        return model == packaged_model()
    except NotInstalledError:
        return False


def check_file(model: Path, option: str) -> None:
    """Raises Failure for what is no file."""
    mode = _mode_of(option, model)
    if stat.S_ISDIR(mode):
        raise Failure(f"{option} {model} is a folder: name the .gguf file in it", EXIT_START_FAILED)
    if not stat.S_ISREG(mode):
        raise Failure(f"{option} {model} is no regular file: name a GGUF file", EXIT_START_FAILED)


def read_packaged_draft() -> Path:
    """The packaged model's drafter. Raises Failure."""
    try:
        return packaged_draft()
    except NotInstalledError as error:
        raise Failure(str(error), EXIT_START_FAILED) from error


def read_draft(draft: Path, target: Path) -> Path:
    """The GGUF file of a drafter for `target`; a checkpoint's folder is converted. Raises Failure."""
    from luce.supervisor.models.drafts import DraftError, resolve_draft

    try:
        return resolve_draft(draft, target, on_convert=say)
    except DraftError as error:
        raise Failure(f"--draft {error}", EXIT_START_FAILED) from error


@contextmanager
def text_model(path: Path) -> Iterator[TextModel]:
    """Raises Failure, also for what the block does with the model."""
    from luce.supervisor.text import ModelLoadError, NoVocabularyError, TextError, TextModel

    try:
        with TextModel(path) as model:
            yield model
    except (NotInstalledError, ModelLoadError) as error:
        raise Failure(str(error), EXIT_START_FAILED) from error
    except NoVocabularyError as error:
        raise Failure(f"{error}: give it ids with `luce-daemon --pipe --text-ids`", EXIT_REFUSED) from error
    except TextError as error:
        raise Failure(str(error), EXIT_REFUSED) from error


def _mode_of(option: str, path: Path) -> int:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        raise Failure(f"{option} {path}: there is no such file", EXIT_START_FAILED) from None
    except OSError as error:
        raise Failure(f"{option} {path}: {os.strerror(error.errno or 0)}", EXIT_START_FAILED) from None
