"""text_model: a model's text side for the length of one command, its errors turned into exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from luce.supervisor.cli.entry import EXIT_REFUSED, EXIT_START_FAILED, Failure
from luce.supervisor.engine.locate import NotInstalledError
from luce.supervisor.text import ModelLoadError, NoVocabularyError, TextError, TextModel


@contextmanager
def text_model(path: Path) -> Iterator[TextModel]:
    """Raises Failure, also for what the block does with the model."""
    try:
        with TextModel(path) as model:
            yield model
    except (NotInstalledError, ModelLoadError) as error:
        raise Failure(str(error), EXIT_START_FAILED) from error
    except NoVocabularyError as error:
        raise Failure(f"{error}: give it ids with `luce-daemon --pipe --text-ids`", EXIT_REFUSED) from error
    except TextError as error:
        raise Failure(str(error), EXIT_REFUSED) from error
