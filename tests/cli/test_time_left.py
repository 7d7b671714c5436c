"""How long commands say that they will take."""

from __future__ import annotations

import pytest

from luce.supervisor.cli.time_left import TimeLeft, in_words


def test_what_is_left_follows_what_steps_took() -> None:
    left = TimeLeft([10, 30, 60])
    assert left.left_s == 100
    left.end_step(20)  # twice as long as expected
    assert 90 < left.left_s < 180
    left.end_step(60)
    assert left.left_s == pytest.approx(60 * 2, rel=0.15)
    left.end_step(120)
    assert left.left_s == 0


def test_steps_of_which_nothing_was_expected_change_little() -> None:
    left = TimeLeft([0, 0, 100])
    left.end_step(0.5)
    left.end_step(0.5)
    assert left.left_s == pytest.approx(100, rel=0.25)
    assert TimeLeft([]).left_s == 0


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.2, "1 s"), (59, "59 s"), (60, "1 min"), (1500, "25 min"), (9000, "2.5 h")]
)
def test_words(seconds: float, said: str) -> None:
    assert in_words(seconds) == said
