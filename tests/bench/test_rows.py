"""The rows of the decode benchmark: what the other programs print is read right, the figures of an answer are what they
say, and the rows that need only luced run to their end. No times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.bench.decode import rows
from scripts.bench.decode.answers import Answers
from scripts.bench.decode.peers import Rate, read_llama_batched_bench, read_llama_bench
from scripts.bench.harness import measure_pairs

LLAMA_BENCH = """\
{"model_type": "qwen35", "n_ubatch": 512, "n_prompt": 0, "n_gen": 300, "n_depth": 8192, "avg_ts": 79.5}
{"model_type": "qwen35", "n_ubatch": 2048, "n_prompt": 0, "n_gen": 300, "n_depth": 8192, "avg_ts": 78.0}
{"model_type": "qwen35", "n_ubatch": 512, "n_prompt": 1024, "n_gen": 0, "n_depth": 0, "avg_ts": 2500.0}
{"model_type": "qwen35", "n_ubatch": 2048, "n_prompt": 1024, "n_gen": 0, "n_depth": 0, "avg_ts": 2700.0}
"""
BATCHED_BENCH = """
llama_model_loader: loaded
{"n_kv_max": 4096, "pp": 512, "tg": 128, "pl": 8, "t_pp": 1.5, "speed_pp": 2730.7, "t_tg": 4.0, "speed_tg": 256.0}

llama_perf_context_print: load time = 12 ms
"""


def test_llama_bench_counts_with_its_best_micro_batch() -> None:
    assert read_llama_bench(LLAMA_BENCH) == {(0, 8192): 79.5, (1024, 0): 2700.0}


def test_llama_batched_bench_is_read_among_its_other_lines() -> None:
    assert read_llama_batched_bench(BATCHED_BENCH) == {8: Rate(2730.7, 256.0)}


def test_an_answers_figures() -> None:
    """One token a second after 10 s, but the fourth gap takes three; a second lane begins two tokens later."""
    answers = Answers([[10, 11, 12, 13, 16, 17, 18], [12, 13, 14, 15, 16, 17, 18]], 240)
    assert (answers.begin_s, answers.end_s) == (12, 18)
    assert answers.prefill == 20
    assert answers.decode == (4 + 6) / 6
    assert answers.early(3) == (1 + 3) / 3
    assert answers.rest(3) == (3 + 3) / 3
    assert answers.worst_gap == 3


@pytest.mark.parametrize("text", ["1x64", "8x512", "1x65536+7x1024"])
def test_a_groups_name_is_how_it_is_written(text: str) -> None:
    assert rows.name_of(rows.group_of(text)) == text
    assert len(rows.group_of(text)) in {1, 8}


def test_both_sides_take_turns() -> None:
    order: list[str] = []

    def side(name: str, pair: int) -> int:
        order.append(f"{name}{pair}")
        return pair

    assert measure_pairs(lambda pair: side("a", pair), lambda pair: side("b", pair), 3) == ([1, 2, 3], [1, 2, 3])
    assert order == ["b1", "a1", "a2", "b2", "b3", "a3"]


def test_a_line_of_the_table() -> None:
    figure = rows.Figure("decode", "64", "decode", "llama-bench", [80.0, 82.0, 84.0], [80.0, 80.0, 80.0])
    assert str(figure) == "| decode | 64 | decode | llama-bench | 82.0 | 80.0 | 1.025 (1.000 .. 1.050) |"


def run(luced: Path, model: Path, folder: Path, *more: str) -> dict[tuple[str, str, str], Any]:
    path = folder / "figures.json"
    rows.main([
        "--luced", str(luced), "--model", str(model), "--threads", "1", "--tokens", "8", "--early", "4",
        "--json", str(path), *more,
    ])  # fmt: skip
    return {(f["row"], f["case"], f["name"]): f for f in json.loads(path.read_text())["figures"]}


def test_a_request_beside_idle_texts_looks_at_its_own_cells(luced: Path, tiny_model: Path, tmp_path: Path) -> None:
    more = ("--rows", "cached", "--cached", "0,2000", "--cached-text", "500", "--cached-prompt", "400")
    figures = run(luced, tiny_model, tmp_path, *more)
    spanned = figures["cached", "400 beside 2000", "cells spanned"]
    assert spanned["ours"] == spanned["theirs"]
    assert figures["cached", "400 alone again", "prefill"]["ours"][0] > 0
    assert all(ratio > 0 for ratio in figures["cached", "400 beside 2000", "the rest"]["ours"])


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
