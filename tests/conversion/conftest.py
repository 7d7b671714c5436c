"""A small checkpoint's target, and the packaged drafter's checkpoint with the model that it was made for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conversion.checkpoints import write_target


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A model that the small checkpoint fits."""
    return write_target(tmp_path / "target.gguf")


@pytest.fixture(scope="session")
def packaged_checkpoint(data_models: Path) -> Path:
    """The packaged drafter, as published drafters come."""
    return data_models / "luce-tiny-dflash-hf"


@pytest.fixture(scope="session")
def target_folder(data_models: Path) -> Path:
    """The packaged model's Hugging Face folder."""
    return data_models / "luce-tiny-hf"
