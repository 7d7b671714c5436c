"""The import graph of the Python parts, as [tool.importlinter] in pyproject.toml draws it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_import_contracts_hold() -> None:
    result = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "build" / "typing")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_importing_the_supervisor_is_cheap() -> None:
    heavy = {"numpy", "gguf", "rich", "ctypes", "psutil", "aiohttp"}
    code = "import sys, luce.supervisor; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert heavy & set(loaded.stdout.split()) == set()
