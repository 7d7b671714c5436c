"""The cell `service` of docs/benchmarks/real.md runs to its end and says what it promises. No times."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.bench.real import service
from scripts.bench.real.rows import Setup


@pytest.fixture
def setup(luced: Path, tiny_model: Path) -> Setup:
    return Setup("luce-tiny", tiny_model, luced, None, 0, 1, "q8_0", 512, quick=True)


def test_service_measures_starts_depths_and_lanes(setup: Setup) -> None:
    smallest = service.Volume(
        depths=(16,), lanes=(2,), n_answer=4, n_lane_prompt=8, n_lane_answer=4, n_start_prompt=32, n_starts=1,
        n_pairs=1,
    )  # fmt: skip
    rows = {row.what: row for row in service.measure(setup, smallest)}
    assert {
        "luced: load to ready, warm file", "luce serve: processor time of it", "prompt at 16", "decode at 16",
        "2 at once, answers of 4 behind prompts of 8",
    } <= rows.keys()  # fmt: skip
    assert all(row.ours > 0 and row.theirs is None and row.is_met is None for row in rows.values())
    whole, own = (rows[f"luced: memory with a text of 32{rest}"].ours for rest in ("", ", not mapped from files"))
    assert own < whole
    assert rows["luce serve: memory with a text of 32"].ours > whole


def test_service_on_smollm(smollm: Path, luced: Path, full: bool) -> None:
    if not full:
        pytest.skip("left out: minutes; --full does it")
    rows = {
        row.what: row.ours for row in service.measure(Setup("smollm", smollm, luced, None, 0, 2, "q8_0", 512, True))
    }
    assert rows["decode at 1,024"] > 0
    assert rows["4 at once, answers of 32 behind prompts of 64"] > 0
