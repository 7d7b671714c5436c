"""Orders of experts and their hits: against brute force on small mixtures, and as the native layout gives memory."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.supervisor.cli.experts.hit_curves import (
    PERCENTS,
    best_order,
    chance,
    compare,
    hits,
    resident_order,
    spread_of,
)
from luce.supervisor.cli.experts.profile_file import PHASES, ExpertProfile
from tests.cli.experts.profiles import profile

EVERY = tuple(range(101))
whole_counts = st.lists(st.integers(0, 50).map(float), min_size=3, max_size=3)
mixtures = st.lists(st.tuples(whole_counts, whole_counts), min_size=1, max_size=2).map(lambda use: profile(*use))


@given(mixtures)
def test_the_best_order_is_the_best_choice_of_so_many_experts(mixture: ExpertProfile) -> None:
    for phase in PHASES:
        uses = mixture.uses(phase)
        flat = [count for counts in uses for count in counts]
        found = hits(best_order(uses), uses, EVERY)
        if not any(flat):
            assert found is None
            continue
        assert found is not None
        for percent, hit in zip(EVERY, found, strict=True):
            n = math.floor(percent / 100 * len(flat) + 1e-9)
            most = max(sum(choice) for choice in itertools.combinations(flat, n))
            assert hit == pytest.approx(most / sum(flat))


@given(mixtures, mixtures)
def test_no_profile_beats_the_best_order_and_all_experts_hit_all(known: ExpertProfile, other: ExpertProfile) -> None:
    if known.shape() != other.shape():
        other = known
    for phase in PHASES:
        curves = compare(known, other, phase, EVERY)
        assert (curves.profile is None) == (curves.best is None)
        if curves.profile is not None and curves.best is not None:
            assert all(a <= b + 1e-12 for a, b in zip(curves.profile, curves.best, strict=True))
            assert curves.profile == sorted(curves.profile)
            assert (curves.profile[0], curves.profile[-1], curves.best[-1]) == (0, 1, 1)


@given(mixtures)
def test_chance_is_the_mean_over_all_choices(mixture: ExpertProfile) -> None:
    flat = [count for counts in mixture.uses("decode") for count in counts]
    if not any(flat):
        return
    for percent, expected in zip(EVERY, chance(len(flat), EVERY), strict=True):
        choices = list(itertools.combinations(flat, percent * len(flat) // 100))
        assert sum(map(sum, choices)) / len(choices) / sum(flat) == pytest.approx(expected)


def test_the_most_used_experts_are_resident_first_by_their_share_of_their_layer() -> None:
    # Layer 1 was used ten times as often; its first expert has half of that, layer 0's first one nine tenths.
    known = profile(([9, 1, 0], [0, 0, 0]), ([50, 30, 20], [0, 0, 0]))
    assert resident_order(known) == [(0, 0), (1, 0), (1, 1), (1, 2), (0, 1), (0, 2)]


def test_prompts_count_a_tenth_of_answers() -> None:
    assert resident_order(profile(([1, 0, 0], [0, 9, 11]))) == [(0, 2), (0, 0), (0, 1)]


def test_layers_of_which_nothing_is_known_get_the_same_share() -> None:
    unknown = ([0, 0], [0, 0])
    assert resident_order(profile(unknown, unknown)) == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_hits_of_a_small_mixture_by_hand() -> None:
    known = profile(([5, 3, 2, 0, 0], [0, 0, 0, 0, 0]), ([6, 4, 0, 0, 0], [0, 0, 0, 0, 0]))
    other = profile(([1, 1, 0, 0, 2], [0, 0, 0, 0, 0]), ([4, 0, 0, 2, 0], [0, 0, 0, 0, 0]))
    # Order: (1, 0), (0, 0), (1, 1), (0, 1), (0, 2), then the ones that are not known.
    decode = compare(known, other, "decode", PERCENTS)
    assert decode.profile is not None
    assert decode.best is not None
    assert decode.profile[:5] == pytest.approx([0.4, 0.5, 0.5, 0.6, 0.6])
    assert decode.best == pytest.approx([0.4, 0.6, 0.8, 0.9, 1, 1, 1, 1, 1])
    assert compare(known, other, "prefill", PERCENTS).best is None
    assert chance(10, PERCENTS) == pytest.approx([percent / 100 for percent in PERCENTS])


@pytest.mark.parametrize("n", [1, 2, 7])
def test_experts_that_are_used_alike_are_all_in_effect(n: int) -> None:
    spread = spread_of([2.5] * n + [0.0] * 3)
    assert spread.uses == 2.5 * n
    assert spread.effective == pytest.approx(n)
    assert spread.most_used_share == pytest.approx(1 / n)


def test_a_layer_that_was_not_used_has_no_spread() -> None:
    assert spread_of([0.0, 0.0]).effective is None
