"""The residency benchmark in short: its prompts, its budget, its arithmetic, and that it runs to its end. No times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.bench.residency import residency
from scripts.bench.residency.flatness import BOUNDED, HOME, WHOLE
from scripts.bench.residency.recall import Residency, measure_recall
from scripts.bench.residency.sides import FULL, LRU, QUERY, EngineSettings

# The budget


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tokens", "2048", "--residency", "12"],
        ["--residency", "0"],
        ["--residency", "100"],
        ["--needles", "0"],
        ["--rounds", "0"],
        ["--answer", "1"],
        ["--pool", "2048"],  # the first position fits it
        ["--pool", "64"],
    ],
)
def test_volumes_that_say_nothing_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        residency.parse_arguments(arguments)
    assert arguments[0] in capsys.readouterr().err


# Against the real daemon


@pytest.mark.full_only
def test_a_needle_that_left_the_pool_is_found_by_query_and_not_by_lru(luced: Path, tiny_model: Path) -> None:
    settings = EngineSettings(luced, tiny_model)
    samples = measure_recall(settings, Residency(25, 1024), ["filler"], n_needles=2)
    shallow, deep = sorted(samples, key=lambda sample: sample.depth)
    assert shallow.is_outside
    assert not deep.is_outside
    assert [shallow.is_right(side) for side in (FULL, QUERY, LRU)] == [True, True, False], shallow.answers
    assert all(deep.is_right(side) for side in (FULL, QUERY, LRU)), deep.answers


@pytest.mark.full_only
def test_flatness_runs_to_its_end(luced: Path, tiny_model: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    residency.main([
        "--luced", str(luced), "--model", str(tiny_model), "--only", "flatness", "--threads", "1", "--pool", "512",
        "--positions", "832", "640", "--answer", "194", "--rounds", "1", "--json", str(figures),
    ])  # fmt: skip
    result = json.loads(figures.read_text())
    samples = result["flatness"]["samples"]
    assert [(s["position"], s["n_turn"]) for s in samples[::3]] == [(640, 0), (640, 1), (832, 0), (832, 1)]
    assert {s["n_decoded"] for s in samples if s["side"] != HOME} == {193}
    # Four answers of 64 tokens, of which the first one is the prompt's.
    assert {s["n_decoded"] for s in samples if s["side"] == HOME} == {4 * 63}
    for side, n_pool in ((BOUNDED, 512), (HOME, 512), (WHOLE, 1152)):
        assert {s["n_pool"] for s in samples if s["side"] == side} == {n_pool}
    ours = [s for s in samples if s["side"] == BOUNDED]
    # What came before was read at the position before; in warm turns nothing is.
    assert [s["n_read"] for s in ours] == [640, 0, 192, 0]
    assert all(s["pages_out"] > 0 and s["n_choices"] > 0 for s in ours)
    assert all(s["pages_out"] == 0 and s["n_choices"] == 0 for s in samples if s["side"] != BOUNDED)
    assert [verdict["what"].split(",")[0] for verdict in result["verdicts"]] == ["decoding", "stalls"]


def test_flatness_needs_no_whole_cache(luced: Path, tiny_model: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    residency.main([
        "--luced", str(luced), "--model", str(tiny_model), "--only", "flatness", "--threads", "1", "--pool", "512",
        "--positions", "640", "--answer", "194", "--rounds", "1", "--without", "whole", "--json", str(figures),
    ])  # fmt: skip
    flatness = json.loads(figures.read_text())["flatness"]
    assert sorted((s["side"], s["n_turn"]) for s in flatness["samples"]) == [
        (BOUNDED, 0),
        (BOUNDED, 1),
        (HOME, 0),
        (HOME, 1),
    ]
    assert flatness["rows"][0]["to_whole"] == []
