"""The cell `speculation` of docs/benchmarks/real.md in short: its prompts for each model, and that it runs to its end
on the packaged model with texts that are plain decoding's. With --full on SmolLM2. No times."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGUFReader

from scripts.bench.real import speculation
from scripts.bench.real.answer_kinds import KINDS
from scripts.bench.real.cut_layers import cut, layers_of
from scripts.bench.real.rows import Row, Setup
from scripts.bench.real.speculation import Volume

SMALLEST = Volume(n_each=1, n_tokens=12, server_ngrams=(), cuts_drafter=True)


def by_kind(rows: list[Row]) -> dict[str, list[Row]]:
    return {kind: [row for row in rows if row.what.startswith(f"{kind}: ")] for kind in KINDS}


def test_answers_are_measured_and_plain_decodings(luced: Path, test_models: Path) -> None:
    model = test_models / "qwen3.gguf"
    rows = speculation.measure(Setup("qwen3", model, luced, None, 0, 1, "q8_0", 512, quick=True), SMALLEST)
    assert all(len(found) == 3 and found[0].ours > 0 for found in by_kind(rows).values())
    [speed, acceptance] = [row for row in rows if row.what.startswith("drafts by the model's own first quarter")]
    assert speed.ours > 0
    assert 0 <= acceptance.ours <= 100
    same = rows[-2]
    assert same.what == "answers with drafts that are plain decoding's"
    assert same.unit == f"of {len(KINDS)}"


def test_smollm_answers_with_drafts_as_without(luced: Path, smollm: Path, full: bool) -> None:
    if not full:
        pytest.skip("some minutes: with --full")
    rows = speculation.measure(Setup("smollm", smollm, luced, None, 0, 1, "q8_0", 512, quick=True))
    assert rows[-1].is_met, rows[-1].note


def test_a_model_is_cut_to_its_first_layers(test_models: Path, tmp_path: Path) -> None:
    source = GGUFReader(test_models / "qwen3.gguf")
    key, n_all = layers_of(source)
    cut(test_models / "qwen3.gguf", n_all - 1, tmp_path / "cut.gguf")
    short = GGUFReader(tmp_path / "cut.gguf")
    assert layers_of(short) == (key, n_all - 1)
    names = {tensor.name for tensor in source.tensors}
    assert {tensor.name for tensor in short.tensors} == {n for n in names if not n.startswith(f"blk.{n_all - 1}.")}
    same = set(source.fields) - {key}
    assert all(short.fields[name].contents() == source.fields[name].contents() for name in same if "GGUF." not in name)
    with pytest.raises(ValueError, match="layers"):
        cut(test_models / "qwen3.gguf", n_all, tmp_path / "whole.gguf")
