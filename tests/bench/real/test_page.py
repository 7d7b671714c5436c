"""The page of real models: its tables come from the results beside it, and from nowhere else."""

from __future__ import annotations

import pytest

from scripts.bench.real.page import PAGE, RESULTS, Result, cell_of, load, table, written
from scripts.bench.real.rows import Row


def result(model: str, *rows: Row) -> Result:
    return Result("service", "cpu", model, "a machine", "abc", "q8_0", rows)


def test_the_page_is_what_the_results_say() -> None:
    assert written(PAGE.read_text(), load(RESULTS)) == PAGE.read_text(), "python -m scripts.bench.real.page"


def test_a_table_has_a_column_for_each_model_and_a_missed_aim_is_bold() -> None:
    lines = table(
        [
            result("A", Row("speed", 12.0, 10.0, "tokens/s", ">= 1.0", True), Row("starts", 1.5, unit="s")),
            result("B", Row("speed", 8.0, 10.0, "tokens/s", ">= 1.0", False, "slow")),
        ]
    ).splitlines()
    assert lines[0] == "| | unit | A | B | aim |"
    assert lines[2] == "| speed | tokens/s | 12 / 10 | **8 / 10** ▽ | >= 1.0 |"
    assert lines[3] == "| starts | s | 1.5 |  |  |"


@pytest.mark.parametrize(
    ("unit", "ours", "is_behind"),
    [("tokens/s", 9.9, False), ("tokens/s", 9.7, True), ("s", 10.1, False), ("MB", 10.3, True), ("%", 1.0, False)],
)
def test_a_cell_is_marked_where_llama_server_is_better_by_more_than_two_percent(
    unit: str, ours: float, is_behind: bool
) -> None:
    assert cell_of(Row("what", ours, 10.0, unit)).endswith("▽") is is_behind
    assert not cell_of(Row("what", ours, None, unit)).endswith("▽")


def test_a_reason_stands_below_the_table() -> None:
    page = "<!-- service -->\nold\n<!-- end -->"
    now = written(page, [result("B", Row("speed", 8.0, 10.0, aim=">= 1.0", is_met=False, note="slow"))])
    assert "old" not in now
    assert "- slow: B (speed)" in now


def test_a_cell_without_a_place_is_an_error() -> None:
    with pytest.raises(ValueError, match="no place for service"):
        written("nothing", [result("A", Row("speed", 1.0))])
