"""Fixtures of the text tests: models opened once, and template texts by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from luce.supervisor.text import TextModel

OpenWith = Callable[[str], TextModel]


@pytest.fixture(scope="session")
def model(tiny_model: Path) -> Iterator[TextModel]:
    with TextModel(tiny_model) as opened:
        yield opened


@pytest.fixture(scope="session")
def open_with(tiny_model: Path, llama_templates_dir: Path) -> Iterator[OpenWith]:
    """The tiny model with one of llama.cpp's templates in place of its own."""
    opened: dict[str, TextModel] = {}

    def open_with_template(name: str) -> TextModel:
        if name not in opened:
            template = (llama_templates_dir / f"{name}.jinja").read_text()
            opened[name] = TextModel(tiny_model, chat_template=template)
        return opened[name]

    yield open_with_template
    for model in opened.values():
        model.close()
