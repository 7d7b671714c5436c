"""Files of weights that are held in memory: all parts of a split model, and nothing once it is let go."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from luce.supervisor.fleet.weight_lock import WeightLock

PART_BYTES = 16384  # two of them are within what anybody may lock


def n_locked_kib() -> int:
    found = re.search(r"VmLck:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


def test_all_parts_are_held_until_they_are_let_go(tmp_path: Path) -> None:
    parts = [tmp_path / f"model-0000{number}-of-00002.gguf" for number in (1, 2)]
    for part in parts:
        part.write_bytes(bytes(PART_BYTES))
    before = n_locked_kib()
    lock = WeightLock.of(parts[0])
    assert n_locked_kib() - before == 2 * PART_BYTES // 1024
    lock.close()
    assert n_locked_kib() == before


def test_what_cannot_be_held_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = tmp_path / "empty.gguf"
    model.touch()
    WeightLock.of(model).close()
    assert "cannot be locked in memory: Invalid argument" in caplog.text
    WeightLock.of(tmp_path / "missing.gguf").close()
    assert "missing.gguf cannot be locked in memory: No such file" in caplog.text
