"""What a start with a real model's file says: nothing that nobody can act on."""

from __future__ import annotations

import subprocess
from pathlib import Path


def test_real_files_are_loaded_without_a_warning(luced: Path, real_models: dict[str, Path]) -> None:
    for model in real_models.values():
        command = [str(luced), "--model", str(model), "--ctx", "512", "--no-warmup"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
        assert "loaded within" in done.stderr
        assert "warn" not in done.stderr, model
