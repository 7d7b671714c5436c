"""The eviction benchmark in its short form: synthetic sessions through luced's own memory, books checked on the way."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = 64


@pytest.fixture(scope="module")
def replay_program() -> Path:
    """The program that drives luced's memory; cmake builds it with the C++ tests."""
    built = list((ROOT / "build").glob("*/scripts/bench/trace_replay"))
    if not built:
        pytest.skip("trace_replay is not built (LUCE_BUILD_TESTS=ON)")
    return max(built, key=lambda path: path.stat().st_mtime)


def session(number: int, rng: random.Random) -> dict[str, Any]:
    """An agent at work: a prompt that grows by a page or two a call, pauses of its own pace, one rest."""
    requests = []
    t, n_pages = 0.0, rng.randint(8, 14)
    pace_s = rng.choice((5.0, 9.0, 25.0))
    for i in range(24):
        think_s = 2000.0 if i == 12 else pace_s * rng.uniform(0.7, 1.4)
        t += think_s
        n_pages += rng.randint(0, 2)
        request = {"t": t, "in": n_pages * PAGE + rng.randint(1, PAGE - 1), "out": 50, "pages": [[1, n_pages]]}
        # Some traces do not say how long the pauses were.
        requests.append(request if i == 3 else request | {"think_time": think_s})
    return {"id": f"synthetic_{number}", "block": PAGE, "requests": requests}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(5)
    path = tmp_path_factory.mktemp("traces") / "traces.jsonl"
    path.write_text("".join(json.dumps(session(number, rng)) + "\n" for number in range(16)))
    return path


def rows_of(program: Path, traces: Path, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    out = folder / "rows.json"
    script = ROOT / "scripts" / "bench" / "eviction" / "trace_cache.py"
    command: list[str | Path] = [
        sys.executable,
        script,
        traces,
        "--program",
        program,
        "--hours",
        "0.2",
        "--json",
        out,
        *arguments,
    ]
    subprocess.run(command, check=True, timeout=300, capture_output=True, text=True)
    rows: list[dict[str, Any]] = json.loads(out.read_text())
    return rows


def test_learned_eviction_serves_more_than_least_recently_used(
    replay_program: Path, traces: Path, tmp_path: Path
) -> None:
    kinds = ("--kinds", "attention", "--seeds", "1", "2", "--budgets", "4000", "8000")
    for row in rows_of(replay_program, traces, tmp_path, *kinds):
        assert row["lru"] < row["luced"] <= row["clairvoyant"]
        assert row["lowest_gain"] >= 0


def test_a_broken_line_of_events_is_refused(replay_program: Path, tmp_path: Path) -> None:
    events = tmp_path / "events.txt"
    events.write_text("0.0 100 1 5\n")
    result = subprocess.run(
        [replay_program, events, "lru", "1000", "0"], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 1
    assert "a broken line" in result.stderr
