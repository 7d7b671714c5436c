"""What counts as the same: tokens, distributions and samples, without an engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import inf, log, nan

import pytest

from luce.supervisor.checking.chi_square import compare_samples
from luce.supervisor.checking.divergence import is_f16, kl_divergence, lead_of_another, most_mean_kl
from luce.supervisor.checking.noise import noise_of
from luce.supervisor.checking.same_tokens import AnswerTokens, Comparison, Step
from luce.supervisor.checking.sampling import parts_clearly
from luce.supervisor.checking.subject import Volume, reach_of


def answer(tokens: Sequence[int], margins: Sequence[float], chosen: float = -0.1) -> AnswerTokens:
    steps = [
        ((token, chosen), (token, -0.1), (token + 1, -0.1 - lead)) for token, lead in zip(tokens, margins, strict=True)
    ]
    return AnswerTokens(tokens, steps)


def test_tokens_may_part_at_a_near_tie_and_nowhere_else() -> None:
    reference = answer([5, 6, 7], [3.0, 0.1, 3.0])
    same, tie, clear = Comparison(0.3), Comparison(0.3), Comparison(0.3)
    same.check("text", reference, reference)
    assert (same.wrong, same.near_ties, same.n_tokens) == ([], [], 3)
    tie.check("text", answer([5, 9, 9], [3.0, 3.0, 3.0]), reference)
    assert (tie.wrong, tie.n_tokens) == ([], 1)
    assert tie.near_ties == ["text: token 1 is 9 instead of 6, where the margin is 0.100"]
    clear.check("text", answer([5, 6, 9], [3.0, 3.0, 3.0]), reference)
    assert clear.wrong == ["text: token 2 is 9 instead of 7, where the margin is 3.000 (noise 0.3)"]


def test_an_answer_that_ends_early_or_whose_logprobs_moved_is_wrong() -> None:
    reference = answer([5, 6, 7], [3.0, 3.0, 3.0])
    for got, said in (
        (answer([5, 6], [3.0, 3.0]), "2 tokens instead of 3"),
        (answer([5, 6, 7], [3.0] * 3, chosen=-0.6), "the logprob of token 0"),
        (answer([5, 6, 7], [3.0] * 3, chosen=nan), "the logprob of token 0"),
        (answer([5, 6, 7], [3.0] * 3, chosen=-inf), "the logprob of token 0"),
    ):
        comparison = Comparison(0.3)
        comparison.check("text", got, reference)
        assert said in comparison.wrong[0]


def test_the_noise_is_twice_the_largest_move_of_the_likeliest_or_of_its_lead() -> None:
    def step(first: float, second: float, own: float = -9.0) -> Step:
        return ((1, own), (5, first), (6, second))

    assert noise_of([step(-0.5, -1.5)], [step(-0.5, -1.5)]) == 0.3
    assert noise_of([step(-0.5, -1.5, own=-9.0)], [step(-0.5, -1.5, own=-12.0)]) == 0.3
    assert noise_of([step(-0.5, -1.5), step(-0.5, -1.5)], [step(-0.5, -1.5), step(-0.9, -1.9)]) == pytest.approx(0.8)
    assert noise_of([step(-0.5, -1.5)], [step(-0.6, -1.1)]) == pytest.approx(1.0)
    turned = ((1, -9.0), (6, -0.6), (5, -0.7))
    assert noise_of([step(-0.6, -0.7)], [turned]) == pytest.approx(0.4)


def test_most_texts_parting_at_near_ties_is_too_much() -> None:
    comparison = Comparison(0.3)
    for n_parted in range(1, 5):
        comparison.check("text", answer([9], [3.0]), answer([10 + n_parted], [0.1]))
        assert comparison.too_many_ties() == (n_parted > 2)


def test_texts_that_go_on_alike_share_a_near_tie() -> None:
    comparison = Comparison(0.3)
    for _ in range(4):
        comparison.check("text", answer([9], [3.0]), answer([5], [0.1]))
    assert len(comparison.near_ties) == 4
    assert not comparison.too_many_ties()


def test_a_draw_may_part_where_two_tokens_are_nearly_as_likely() -> None:
    plain = AnswerTokens([5, 6], [((5, -0.2), (5, -0.2), (7, -3.0)), ((6, -1.0), (8, -0.9), (6, -1.0), (9, -4.0))])
    for tokens, is_clear in (([5, 6], False), ([5, 8], False), ([5, 9], True), ([5, 1], True), ([7, 6], True)):
        assert parts_clearly(AnswerTokens(tokens, []), plain, 0.3) == is_clear


def test_chi_square_tells_two_distributions_from_one() -> None:
    rng = random.Random(1)
    fair = [[rng.randrange(6) for _ in range(300)] for _ in range(2)]
    loaded = [rng.choice((0, 0, 1, 2, 3, 4, 5)) for _ in range(300)]
    assert compare_samples(*fair).n_free == 5
    assert compare_samples(*fair).p > 0.01
    assert compare_samples(fair[0], [min(value, 4) for value in loaded]).p < 1e-4


@pytest.mark.parametrize(("statistic_p", "n_free"), [((6.635, 0.01), 1), ((27.877, 1e-4), 6), ((37.332, 1e-4), 11)])
def test_p_is_that_of_the_tables(statistic_p: tuple[float, float], n_free: int) -> None:
    from luce.supervisor.checking.chi_square import ChiSquare

    statistic, p = statistic_p
    assert ChiSquare(statistic, n_free).p == pytest.approx(p, rel=0.35)


def test_rare_categories_count_together_and_one_category_says_nothing() -> None:
    common = ["a"] * 50 + ["b"] * 50
    assert compare_samples([*common, *"cdefgh"], [*common, *"ijklmn"]).n_free == 2
    assert compare_samples([*common, "c"], common).n_free == 1  # with the rarest of the others
    assert compare_samples(["a"] * 50, ["a"] * 50).p == 1.0


def test_kl_divergence_is_zero_of_equals_and_counts_what_is_not_told() -> None:
    half = ((1, log(0.5)), (2, log(0.5)))
    tilted = ((1, log(0.9)), (2, log(0.1)))
    assert kl_divergence(half, half) == pytest.approx(0)
    assert kl_divergence(half, tilted) == pytest.approx(0.5 * log(0.5 / 0.9) + 0.5 * log(0.5 / 0.1))
    elsewhere = ((3, log(0.999)), (1, log(0.0005)))
    assert kl_divergence(half, elsewhere) > 2
    assert kl_divergence(half, ((3, 0.0), (1, -inf))) >= 0


def test_another_likeliest_token_has_the_lead_that_f16_gives_it() -> None:
    reference = ((1, log(0.6)), (2, log(0.3)))
    assert lead_of_another(reference, ((1, log(0.4)), (2, log(0.3)))) is None
    assert lead_of_another(reference, ((2, log(0.5)), (1, log(0.4)))) == pytest.approx(log(2))
    assert lead_of_another(reference, ((3, log(0.9)), (1, log(0.1)))) == inf


def test_the_coarsest_type_decides_what_is_allowed() -> None:
    assert most_mean_kl("q8_0/q8_0") == 0.01
    assert most_mean_kl("q8_0/q4_0") == most_mean_kl("q4_0/q4_0") == 0.06
    assert most_mean_kl("q8_0,0-3:f16/q5_1") == 0.03
    assert most_mean_kl("tq3 in the host") == 0.15
    assert most_mean_kl("x7/x7") is None
    assert is_f16("f16/f16")
    assert not is_f16("f16/q8_0")
    assert not is_f16("q8_0,0-3:f16/f16")


def test_lengths_beyond_the_reach_are_left_out() -> None:
    volume = Volume(lengths=(1024, 4096, 32768), n_answer=48)
    reach = reach_of(volume, ctx=None, n_trained=8192, pool=None)
    assert (reach.ctx, reach.lengths, reach.beyond) == (8192, (1024, 4096), (32768,))
    assert reach_of(volume, ctx=None, n_trained=0, pool=None).lengths == volume.lengths
    assert reach_of(volume, ctx=4096, n_trained=8192, pool=None).lengths == (1024,)
    bounded = reach_of(volume, ctx=65536, n_trained=8192, pool=8192)
    assert (bounded.ctx, bounded.beyond, bounded.why) == (65536, (32768,), "the pool has 8,192 tokens")
