"""The residency benchmark in short: its prompts, its budget, its arithmetic, and that it runs to its end. No times."""

from __future__ import annotations

import io
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from luce.supervisor.text import TextModel
from scripts.bench.residency import residency
from scripts.bench.residency.flatness import BOUNDED, HOME, WHOLE, FlatnessSample, FlatnessVolume
from scripts.bench.residency.prompts import DEEPEST, KINDS, N_TURNS, SHALLOWEST, depths, needle_prompt
from scripts.bench.residency.recall import RecallSample, Residency, least_tokens, measure_recall
from scripts.bench.residency.report import (
    ALL,
    RecallRow,
    flatness_rows,
    recall_rows,
    show_flatness,
    to_json,
    verdicts,
)
from scripts.bench.residency.sides import FULL, LRU, QUERY, EngineSettings, RefusedError, whole_pages

N_TOKENS = 1500


# Prompts


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_is_as_long_as_asked_for_and_holds_its_needle_once(tiny_model: Path, kind: str) -> None:
    with TextModel(tiny_model) as model:
        for depth in (0.1, 0.5, 0.9):
            prompt = needle_prompt(model, kind, N_TOKENS, depth, seed=1)
            text = model.detokenize(prompt.ids, unparse_special=True).decode()
            assert 0.9 * N_TOKENS < len(prompt.ids) < 1.1 * N_TOKENS
            assert text.count(prompt.expected) == 1
            assert text.count("The access code of the") == (4 if kind == "four" else 1)
            assert text.rstrip().endswith("<|im_start|>assistant")
            assert prompt.n_behind == len(prompt.ids) - prompt.needle_at
            from_needle = model.detokenize(prompt.ids[prompt.needle_at - 1 :], unparse_special=True).decode()
            assert from_needle.find("The access code of the") in range(24)
            assert from_needle.find(prompt.expected) in range(60)


@pytest.mark.parametrize("kind", KINDS)
def test_a_depth_is_where_the_needle_is(tiny_model: Path, kind: str) -> None:
    with TextModel(tiny_model) as model:
        for depth in (0.1, 0.5, 0.9):
            prompt = needle_prompt(model, kind, N_TOKENS, depth, seed=1)
            # The fact of the first turn is as deep in its own turn's text.
            whole = depth / (N_TURNS - 1) if kind == "turns" else depth
            assert prompt.needle_at / len(prompt.ids) == pytest.approx(whole, abs=0.08)


@pytest.mark.parametrize("kind", KINDS)
def test_every_seed_has_its_own_prompt_and_always_the_same(tiny_model: Path, kind: str) -> None:
    with TextModel(tiny_model) as model:
        first, again = (needle_prompt(model, kind, N_TOKENS, 0.5, seed=1) for _ in range(2))
        other = needle_prompt(model, kind, N_TOKENS, 0.5, seed=2)
    assert first == again
    assert first.ids != other.ids
    assert first.expected != other.expected


def test_the_code_is_this_repositorys_and_the_needle_a_comment(tiny_model: Path) -> None:
    with TextModel(tiny_model) as model:
        prompt = needle_prompt(model, "code", N_TOKENS, 0.5, seed=3)
        text = model.detokenize(prompt.ids, unparse_special=True).decode()
    lines = text.partition("```python\n")[2].partition("\n```")[0].splitlines()
    [fact] = [line for line in lines if "access code" in line]
    assert fact.lstrip().startswith("# ")
    root = Path(residency.__file__).resolve().parents[3]
    files = [*(root / "supervisor").glob("*.py"), *(root / "protocol").glob("*.py")]
    known = {line for file in files for line in file.read_text().splitlines()}
    assert set(lines) - {fact} <= known


def test_depths_go_evenly_from_the_shallowest_to_the_deepest() -> None:
    assert depths(1) == [pytest.approx(0.5)]
    assert depths(5) == pytest.approx([SHALLOWEST, 0.3, 0.5, 0.7, DEEPEST])
    assert len(set(depths(40))) == 40


# The budget


@pytest.mark.parametrize(
    ("percent", "n_tokens", "n_ubatch", "n_pool"),
    [
        (25, 2048, 64, 896),  # 5 pages, a slice, 512
        (12, 4096, 64, 896),  # 491.5 more than 384, in whole pages
        (6, 7168, 64, 832),
        (6, 7168, 512, 1280),
        (50, 128, 64, 448),
    ],
)
def test_a_pool_has_what_must_stay_a_slice_and_the_share(
    percent: int, n_tokens: int, n_ubatch: int, n_pool: int
) -> None:
    assert Residency(percent, n_tokens).n_pool(n_ubatch) == n_pool


def test_texts_are_long_enough_to_say_something() -> None:
    assert [Residency.of(percent).n_tokens for percent in (25, 12, 6)] == [2048, 4096, 7168]
    assert [least_tokens(percent) for percent in (50, 20, 10, 1)] == [2048, 4096, 7168, 7168]
    assert Residency.of(12, 9000).n_tokens == 9000
    assert Residency.of(12).n_ctx >= 4096 + 64
    assert [whole_pages(n) for n in (1, 64, 64.5, 128)] == [64, 64, 128, 128]


def test_the_text_that_fits_ends_where_the_pool_is_full() -> None:
    volume = FlatnessVolume((2048, 4096), n_pool=1024, n_answer=256)
    assert (volume.n_home, volume.n_home_answer) == (960, 64)
    assert volume.n_ctx >= 4096 + 256
    short = FlatnessVolume((2048,), n_pool=1024, n_answer=40)
    assert short.n_home + short.n_home_answer == 1024


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


def test_quick_replaces_only_what_was_not_given() -> None:
    args = residency.parse_arguments(["--quick", "--needles", "7"])
    assert args.needles == 7
    assert args.residency == residency.QUICK["residency"]


# The report


def recall_sample(kind: str, found: str, n_behind: int = 4000, percent: int = 12) -> RecallSample:
    """`found`: the first letters of the sides that have it."""
    answers = {side: "It is 12345." if side[0] in found else "It is 5." for side in (FULL, QUERY, LRU)}
    return RecallSample(kind, percent, 896, 4096, n_behind, 0.1, "12345", answers)


def test_recall_is_counted_by_kind_and_against_the_full_cache() -> None:
    samples = [
        recall_sample("filler", "fq"), recall_sample("filler", "fql", n_behind=200), recall_sample("code", "f"),
        recall_sample("code", ""), recall_sample("code", "fq", percent=25),
    ]  # fmt: skip
    rows = recall_rows(samples)
    assert [(row.percent, row.kind, row.n) for row in rows] == [
        (25, "code", 1), (25, ALL, 1), (12, "filler", 2), (12, "code", 2), (12, ALL, 4),
    ]  # fmt: skip
    every = rows[-1]
    assert [every.recall(side) for side in (FULL, QUERY, LRU)] == [0.75, 0.5, 0.25]
    assert every.of_full(QUERY) == pytest.approx(2 / 3)
    # Of the three needles outside the window the full cache missed one.
    assert every.n_outside == 2
    assert [every.outside(side) for side in (QUERY, LRU)] == [0.5, 0.0]


def test_a_needle_in_the_first_page_is_never_outside() -> None:
    assert recall_sample("turns", "f", n_behind=4000).is_outside
    assert not recall_sample("turns", "f", n_behind=4060).is_outside
    assert not recall_sample("turns", "f", n_behind=896).is_outside


def test_what_the_full_cache_misses_is_nobodys_share() -> None:
    row = RecallRow.of("code", [recall_sample("code", "")])
    assert row.of_full(QUERY) is None
    assert row.outside(LRU) is None
    assert row.recall(QUERY) == 0
    assert verdicts([replace(row, kind=ALL)], []) == []


def flatness_samples(slowdown: float, stall_share: float = 0.01) -> list[FlatnessSample]:
    """Two positions and two turns; the first turn of each is ten times slower. `slowdown`: of bounded at the second."""
    samples = []
    for position in (2048, 4096):
        for turn in (0, 1, 2):
            for side, token_s in ((BOUNDED, 0.01), (HOME, 0.01), (WHOLE, 0.02)):
                decode_s = 100 * token_s * (10 if turn == 0 else turn)
                is_slow = side == BOUNDED and position == 4096
                decode_s *= slowdown if is_slow else 1
                samples.append(
                    FlatnessSample(
                        side,
                        position,
                        turn,
                        0 if turn else 1000,
                        position / 1000,
                        100,
                        decode_s,
                        decode_s * stall_share if side == BOUNDED else 0.0,
                        1024 if side != WHOLE else 4480,
                        3,
                        20,
                        1_000_000,
                        50_000,
                    )
                )
    random.Random(1).shuffle(samples)
    return sorted(samples, key=lambda sample: (sample.position, sample.n_turn))


def test_flatness_is_compared_turn_by_turn() -> None:
    first, second = flatness_rows(flatness_samples(1.04))
    assert first.to_home == pytest.approx((1.0, 1.0))
    assert second.to_home == pytest.approx((1.04, 1.04))
    assert second.to_whole == pytest.approx((0.52, 0.52))
    assert second.stall_share == pytest.approx(0.01)
    assert second.prefill_s[BOUNDED] / first.prefill_s[BOUNDED] == pytest.approx(2.0)
    assert second.n_pool == {BOUNDED: 1024, WHOLE: 4480}


def test_what_was_left_out_is_not_judged() -> None:
    samples = [sample for sample in flatness_samples(1.04) if sample.side != WHOLE]
    rows = flatness_rows(samples)
    assert [row.to_whole for row in rows] == [(), ()]
    assert [row.to_home for row in rows] == [row.to_home for row in flatness_rows(flatness_samples(1.04))]
    show_flatness(Console(file=io.StringIO()), rows)
    # A run with lru and one without, taken together: of lru nothing is said.
    recall = [recall_sample("filler", "fql"), recall_sample("filler", "fq")]
    del recall[1].answers[LRU]
    row = recall_rows(recall)[0]
    assert (row.sides, row.n_found, row.outside(LRU)) == ((FULL, QUERY), {FULL: 2, QUERY: 2}, None)
    assert not any("lru" in verdict.what for verdict in verdicts(recall_rows(recall), []))


@pytest.mark.parametrize(
    ("slowdown", "stall_share", "reached"), [(1.04, 0.01, [True, True]), (1.06, 0.03, [False, False])]
)
def test_flatness_is_judged_by_its_worst_position(slowdown: float, stall_share: float, reached: list[bool]) -> None:
    rows = flatness_rows(flatness_samples(slowdown, stall_share))
    assert [verdict.is_reached for verdict in verdicts([], rows)] == reached


def test_recall_is_judged_over_all_kinds() -> None:
    good = [recall_sample("filler", "fq") for _ in range(19)]
    missed = [recall_sample("code", "f")]
    [query, lru] = verdicts(recall_rows(good + missed), [])
    assert query.is_reached
    assert query.value == pytest.approx(0.95)
    assert lru.is_reached
    assert str(query).endswith("at least 0.95: reached")
    [query, _] = verdicts(recall_rows(good[1:] + missed), [])
    assert not query.is_reached
    [_, lru] = verdicts(recall_rows([recall_sample("filler", "fql")]), [])
    assert not lru.is_reached


def test_everything_is_in_the_json() -> None:
    recall, flatness = [recall_sample("filler", "fq")], flatness_samples(1.0)
    figures = json.loads(json.dumps(to_json(recall, flatness, {"needles": 1})))
    assert figures["recall"]["samples"][0]["answers"] == recall[0].answers
    assert len(figures["flatness"]["rows"]) == 2
    assert {verdict["is_reached"] for verdict in figures["verdicts"]} == {True}


# Against the real daemon


def test_a_needle_that_left_the_pool_is_found_by_query_and_not_by_lru(luced: Path, tiny_model: Path) -> None:
    settings = EngineSettings(luced, tiny_model)
    samples = measure_recall(settings, Residency(25, 1024), ["filler"], n_needles=2)
    shallow, deep = sorted(samples, key=lambda sample: sample.depth)
    assert shallow.is_outside
    assert not deep.is_outside
    assert [shallow.is_right(side) for side in (FULL, QUERY, LRU)] == [True, True, False], shallow.answers
    assert all(deep.is_right(side) for side in (FULL, QUERY, LRU)), deep.answers


def test_what_luced_refuses_ends_the_run(luced: Path, tiny_model: Path) -> None:
    class Short(Residency):
        n_ctx = 256

    with pytest.raises(RefusedError, match=r"luced: \w+ .*256"):
        measure_recall(EngineSettings(luced, tiny_model), Short(25, 1024), ["filler"], n_needles=1)


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
