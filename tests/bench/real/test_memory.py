"""The cells of scripts/bench/real in short: what they ask is what they say, and they run to their end on the packaged
model. With --full on SmolLM2. No times.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.bench.real import bounded, formats, sparse
from scripts.bench.real.rows import Row, Setup

TINY_VOLUME = bounded.Volume((2048,), (4,), 1, 2, 16, calibrates=False)


@pytest.fixture
def setup(tiny_model: Path, luced: Path) -> Setup:
    return Setup("tiny", tiny_model, luced, None, 0, 1, "q8_0", 64, quick=True)


def by_name(rows: list[Row]) -> dict[str, Row]:
    named = {row.what: row for row in rows}
    assert len(named) == len(rows), "two rows of one name"
    return named


# Bounded


@pytest.mark.full_only
def test_bounded_asks_the_whole_text_and_a_quarter_of_it(setup: Setup) -> None:
    rows = by_name(bounded.measure_volume(setup, TINY_VOLUME))
    assert any(name.startswith("questions, the whole of") for name in rows)
    quarter = next(row for name, row in rows.items() if name.startswith("perplexity") and "lru" not in name)
    assert quarter.is_met is (quarter.ours <= bounded.MOST_PERPLEXITY)


# Formats, sparse


def test_formats_compares_each_with_f16(setup: Setup) -> None:
    rows = by_name(formats.measure_volume(setup, formats.Volume((512,), 1, 1, 16)))
    for name in formats.FORMATS:
        assert 0 <= rows[f"KL, {name}, 512 tokens"].ours < 1
        assert 0 < rows[f"likeliest token the same, {name}, 512 tokens"].ours <= 1


@pytest.mark.full_only
def test_sparse_asks_whole_and_in_parts(setup: Setup, data_models: Path) -> None:
    scorer = next(data_models.glob("*scorer*.gguf"))
    rows = by_name(sparse.measure_volume(setup, sparse.Volume(1536, 1, 2), {"tiny": scorer}))
    assert rows["questions, whole prompt, scorer tiny"].unit == "of 4"


def test_bounded_on_smollm(smollm: Path, luced: Path, full: bool) -> None:
    if not full:
        pytest.skip("left out: minutes; --full does it")
    rows = bounded.measure(Setup("smollm", smollm, luced, None, 0, 2, "q8_0", 64, quick=True))
    assert {row.aim for row in rows} >= {"<= 1.03", ">= 0.95"}
