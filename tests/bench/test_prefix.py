"""The prefix benchmark in short: it runs to its end, and what luced reads again is only what is new. No times."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.bench.memory import prefix


def test_a_session_reads_only_what_is_new(luced: Path, tiny_model: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    prefix.main([
        "--luced", str(luced), "--bare", str(tmp_path / "none"), "--models", str(tiny_model), "--threads", "1",
        "--pairs", "1", "--turns", "3", "--tokens", "420", "--system", "150", "--answer", "4", "--pool", "2048",
        "--json", str(figures),
    ])  # fmt: skip
    [result] = json.loads(figures.read_text()).values()
    [samples] = result["samples"]
    assert [sample["step"] for sample in samples[:3]] == ["turn 1", "turn 2", "turn 3"]
    turns = [sample for sample in samples if sample["is_warm"] and not sample["step"].startswith("edit")]
    assert [sample["luced_read"] for sample in turns] == [sample["n_new"] for sample in turns]
    assert all(sample["tier"] != "none" for sample in samples if sample["is_warm"])
