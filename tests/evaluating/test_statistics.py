"""Intervals: Wilson's by its known values, that of a difference by how often it holds."""

from __future__ import annotations

import random

import pytest

from luce.supervisor.evaluating.statistics import difference, share


@pytest.mark.parametrize(
    ("n_right", "n", "low", "high"),
    [(0, 10, 0.0, 0.2775), (8, 10, 0.4902, 0.9433), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662)],
)
def test_wilson(n_right: int, n: int, low: float, high: float) -> None:
    found = share([1.0] * n_right + [0.0] * (n - n_right))
    assert (found.value, found.low, found.high) == pytest.approx((n_right / n, low, high), abs=1e-4)


def test_scores_between_the_ends_count() -> None:
    assert share([0.5, 1.0, 0.0, 0.5]).value == 0.5


def test_a_difference_holds_as_often_as_it_says() -> None:
    """Of pairs that depend on each other, with shares near the end, where others fail."""
    rng = random.Random(3)
    n_trials, n_pairs, held = 1000, 30, 0
    for _ in range(n_trials):
        first, second = [], []
        for _ in range(n_pairs):
            is_easy = rng.random() < 0.8
            first.append(float(rng.random() < (0.99 if is_easy else 0.6)))
            second.append(float(rng.random() < (0.97 if is_easy else 0.3)))
        found = difference(first, second)
        held += found.low <= 0.8 * 0.02 + 0.2 * 0.3 <= found.high
    assert 0.93 <= held / n_trials <= 0.99


def test_a_difference_of_equal_sides_is_not_certain() -> None:
    found = difference([1.0] * 10, [1.0] * 10)
    assert found.value == 0
    assert -0.35 < found.low < -0.2
    assert 0.2 < found.high < 0.35


def test_pairs_say_more_than_shares() -> None:
    """The same shares: once both sides miss the same questions, once others."""
    first = [1.0] * 15 + [0.0] * 5
    together, apart = difference(first, first), difference(first, first[::-1])
    assert together.high - together.low < apart.high - apart.low
    assert together.value == apart.value == 0


def test_the_order_of_sides_turns_the_sign() -> None:
    one, other = [1.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]
    there, back = difference(one, other), difference(other, one)
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))
