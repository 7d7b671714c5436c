"""The rows of the decode benchmark: what the other programs print is read right, the figures of an answer are what they
say, and the rows that need only luced run to their end. No times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.bench.decode import rows


def run(luced: Path, model: Path, folder: Path, *more: str) -> dict[tuple[str, str, str], Any]:
    path = folder / "figures.json"
    rows.main([
        "--luced", str(luced), "--model", str(model), "--threads", "1", "--tokens", "8", "--early", "4",
        "--json", str(path), *more,
    ])  # fmt: skip
    return {(f["row"], f["case"], f["name"]): f for f in json.loads(path.read_text())["figures"]}


def test_rows_of_luced_alone_come_to_their_end(luced: Path, tiny_model: Path, tmp_path: Path) -> None:
    more = ("--rows", "sampled,beside", "--lanes", "1x20,1x40+1x20", "--beside", "700", "--pairs", "2")
    figures = run(luced, tiny_model, tmp_path, *more)
    assert list(figures) == [
        ("sampled", "1x20", "decode"), ("sampled", "1x40+1x20", "decode"), ("beside", "700", "longest gap, slices"),
        ("beside", "700", "prompt's time"),
    ]  # fmt: skip
    assert all(len(figure["ours"]) == 2 for figure in figures.values())


def test_an_unknown_row_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        rows.main(["--rows", "decode,nothing"])
    assert "no row nothing" in capsys.readouterr().err
