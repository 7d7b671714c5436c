"""What the residency benchmark asks of an answer that comes to need something late: that it is forced as it should be,
counted by place, and that a real engine answers. No times."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from luce.supervisor.text import TextModel
from scripts.bench import residency
from scripts.bench.residency_later import (
    LEAST_TAU,
    N_CHOICES,
    LaterSample,
    LaterText,
    Need,
    measure_later,
    needs_of,
)
from scripts.bench.residency_later_report import later_rows, show_later
from scripts.bench.residency_recall import Residency
from scripts.bench.residency_sides import FULL, LRU, QUERY, EngineSettings, RefusedError


@pytest.mark.parametrize("tau", [LEAST_TAU, 64, 100, 256])
def test_an_answer_is_forced_up_to_the_code_at_its_place(tiny_model: Path, tau: int) -> None:
    with TextModel(tiny_model) as model:
        text = LaterText(model, 1024, 0.3, seed=1)
        for need in needs_of(tau):
            forced = text.forced(need, tau)
            # At a prompt's end pages are chosen before its last token is computed.
            assert len(forced) - need.place == N_CHOICES * tau - 1
            said = model.detokenize(forced).decode()
            assert said.rstrip().endswith(f"The access code of the {text.owner} is")
            assert not any(map(str.isdigit, said))
            assert said.count(text.owner) == (1 if need.mentioned is None else 2)
            if need.mentioned is None:
                continue
            at_mention = model.detokenize(forced[: N_CHOICES * tau - need.mentioned]).decode()
            assert at_mention.endswith(f"think of the access code of the {text.owner}.")


def test_a_prompt_asks_for_nothing_and_shares_its_beginning(tiny_model: Path) -> None:
    with TextModel(tiny_model) as model:
        text = LaterText(model, 1024, 0.3, seed=1)
        first, second = text.prompt(1), text.prompt(2)
        said = model.detokenize(first, unparse_special=True).decode()
        assert LaterText(model, 1024, 0.3, seed=1).prompt(1) == first
    assert first[:-32] == second[:-32]
    assert first != second
    assert said.count(text.code) == said.count(text.owner) == 1
    before, _, after = said.partition(text.code)
    n_before, n_after = before.count("\n"), after.count("\n")  # lines differ in length, from version to version too
    assert n_before / (n_before + n_after) == pytest.approx(0.3, abs=0.1)
    assert "access code" not in after


def sample(need: Need, found: str, percent: int = 12) -> LaterSample:
    """`found`: the first letters of the sides that have it."""
    answers = {side: " 12345" if side[0] in found else " 12340" for side in (FULL, QUERY, LRU)}
    return LaterSample(percent, 896, 4096, need, "12345", answers)


def test_needs_are_counted_by_residency_and_place() -> None:
    samples = [
        sample(Need(16, 4), "fq"), sample(Need(4), "fq"), sample(Need(4), "f"), sample(Need(32), ""),
        sample(Need(16, 1), "fq"), sample(Need(4), "f", percent=25),
    ]  # fmt: skip
    rows = later_rows(samples)
    assert [(row.percent, row.need, row.n) for row in rows] == [
        (25, Need(4), 1), (12, Need(4), 2), (12, Need(32), 1), (12, Need(16, 1), 1), (12, Need(16, 4), 1),
    ]  # fmt: skip
    assert rows[1].n_found == {FULL: 2, QUERY: 1, LRU: 0}
    console = Console(record=True, width=120)
    show_later(console, rows)
    assert "announced" in console.export_text()


def test_a_code_is_the_whole_answer() -> None:
    good = sample(Need(4), "f")
    assert good.is_right(FULL)
    assert not good.is_right(LRU)
    assert not replace(good, answers={FULL: "12345 6"}).is_right(FULL)


def test_a_choice_hears_what_was_announced_just_before_it(luced: Path, tiny_model: Path) -> None:
    samples = measure_later(EngineSettings(luced, tiny_model), Residency(12, 2048), n_texts=1)
    assert [s.need for s in samples] == needs_of(64)
    assert all(s.is_right(FULL) and not s.is_right(LRU) for s in samples), samples
    [just_before] = [s for s in samples if s.need.mentioned == 1]
    assert just_before.is_right(QUERY), just_before


def test_what_luced_refuses_ends_the_run(luced: Path, tiny_model: Path) -> None:
    class Short(Residency):
        n_ctx = 256

    with pytest.raises(RefusedError, match=r"luced: \w+ .*256"):
        measure_later(EngineSettings(luced, tiny_model), Short(25, 1024), n_texts=1)


def test_figures_are_written_and_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "figures.json"
    run = residency.Run(residency.parse_arguments(["--json", str(path)]), Console())
    run.add_later(sample(Need(16, 4), "fq"))
    assert json.loads(path.read_text())["later"]["rows"][0]["n_found"] == {FULL: 1, QUERY: 1, LRU: 0}
    again = residency.Run(residency.parse_arguments([]), Console(width=120))
    again.add_file(path)
    assert again.later == run.later
    again.show()
    assert "announced" in capsys.readouterr().out


def test_an_interval_without_room_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        residency.parse_arguments(["--only", "later", "--tau", str(LEAST_TAU - 1)])
    assert "--tau" in capsys.readouterr().err
