"""The benchmark of idle texts in short: it runs to its end, and no computation looks at them. No times."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.bench.memory import idle


def test_a_request_beside_idle_texts_looks_at_its_own_cells(luced: Path, tiny_model: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    idle.main([
        "--luced", str(luced), "--model", str(tiny_model), "--threads", "1", "--pairs", "1", "--idle", "0,2000",
        "--text", "500", "--prompt", "400", "--tokens", "8", "--early", "4", "--json", str(figures),
    ])  # fmt: skip
    [[none, some]] = json.loads(figures.read_text())["samples"]
    assert (none["n_idle"], some["n_idle"]) == (0, 2000)
    assert some["n_spanned"] == none["n_spanned"]
