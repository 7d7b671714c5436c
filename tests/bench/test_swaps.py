"""The benchmark of swaps in short: it runs to its end, and a model that comes back reads only what is new. No times."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.bench.fleet import swaps


def test_a_model_that_comes_back_reads_only_what_is_new(luced: Path, tiny_model: Path, tmp_path: Path) -> None:
    models = [tmp_path / "one.gguf", tmp_path / "other.gguf"]
    for model in models:
        model.symlink_to(tiny_model)
    figures = tmp_path / "figures.json"
    swaps.main([
        "--luced", str(luced), "--models", *map(str, models), "--threads", "1", "--conversation", "200", "--turn", "10",
        "--answer", "4", "--rounds", "1", "--pause", "0", "--copies", "1", "--json", str(figures),
    ])  # fmt: skip
    result = json.loads(figures.read_text())
    visits = [(visit["model"], visit["kind"], visit["n_read"] - visit["n_new"]) for visit in result["visits"]]
    assert visits[:4] == [(name, kind, 0) for kind in ("start", "swap") for name in ("one", "other")]
    assert [n_anew > 200 for _, _, n_anew in visits[4:]] == [True, True], "without its memory it reads all"
    assert all(copies["pinned 1"] for copies in result["copies"].values())
