"""--draft-accept rejection: other tokens at a seed than plain decoding's, from the same distribution.

The samples are drawn with fixed seeds, so what is tested comes out the same each time, but for roundings.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from contextlib import closing
from math import exp, sqrt
from pathlib import Path

import pytest

from luce.protocol import Logprobs
from luce.supervisor.text import TextModel
from tests.conftest import GoldenCase
from tests.daemon.chi_square import Z, excess
from tests.daemon.conftest import Start, margins_of
from tests.daemon.exactness import (
    ASSIGNMENTS,
    N_ASSIGNMENTS,
    all_answers,
    check_assignments,
    compare_drawn,
    drafted,
    generate,
    status_of,
)
from tests.daemon.same_tokens import (
    NOISE_BATCHING,
    NOISE_GPU,
    NOISE_STRANGE,
    SHARE_SHORT,
    Comparison,
    SampledComparison,
)
from tests.daemon_driver import Answer, DaemonDriver, gen_line, random_prompt

N_SAMPLES = 1_500
N_SAMPLES_FULL = 20_000
N_TOKENS = 4
WAVE = 200
LEAST_VARIANCE = 20.0
"""Of a count that is taken for a normal variable."""
REJECTION = ("--draft-accept", "rejection", "--draft-gate", "off", "--draft-ngram", "off")
PLAIN = ("--draft-max", "0")
SAMPLING = "temp=1 top_k=4"


def ask_all(daemon: DaemonDriver, prompt: Sequence[int], extra: str, seeds: range) -> list[Answer]:
    """The prefixes of as many answers."""
    answers: list[Answer] = []
    for first in range(0, len(seeds), WAVE):
        wave = seeds[first : first + WAVE]
        daemon.send(*(gen_line(i, N_TOKENS, prompt, f"{extra} ignore_eos=1 seed={s}") for i, s in enumerate(wave)))
        told = daemon.collect(len(wave))
        answers += [told[i] for i in range(len(wave))]
    assert all(len(answer.tokens) == N_TOKENS for answer in answers)
    return answers


def samples(daemon: DaemonDriver, prompt: Sequence[int], extra: str, seeds: range) -> list[tuple[int, ...]]:
    return [tuple(answer.tokens) for answer in ask_all(daemon, prompt, extra, seeds)]


def worst(first: Sequence[tuple[int, ...]], second: Sequence[tuple[int, ...]]) -> float:
    """By position, and by what the first three are together: drafts begin behind the first."""
    by_position = [excess([a[i] for a in first], [b[i] for b in second]) for i in range(N_TOKENS)]
    return max(*by_position, excess([a[:3] for a in first], [b[:3] for b in second]))


def chances(line: Logprobs, temperature: float) -> dict[int, float]:
    """Of the likeliest tokens, when no other can be drawn (top_k)."""
    weights = {token: exp(logprob / temperature) for token, logprob in line.entries[1:]}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


def misfit(answers: Sequence[Answer], temperature: float) -> float:
    """How far the tokens are from the chances that their own steps gave them (logprobs of all that can be drawn), by
    position and by the text before: above 1 is not by chance. No rounding matters here, however the steps batched."""
    seen: Counter[Hashable] = Counter()
    expected: defaultdict[Hashable, float] = defaultdict(float)
    variance: defaultdict[Hashable, float] = defaultdict(float)
    for answer in answers:
        for i, line in enumerate(answer.logprobs):
            for place in (i, tuple(answer.tokens[:i])):
                seen[place, answer.tokens[i]] += 1
                for token, chance in chances(line, temperature).items():
                    expected[place, token] += chance
                    variance[place, token] += chance * (1 - chance)
    assert seen.keys() <= expected.keys(), "tokens that could not be drawn"
    many = [cell for cell in expected if variance[cell] >= LEAST_VARIANCE]
    assert len(many) > N_TOKENS
    return max(abs(seen[cell] - expected[cell]) / sqrt(variance[cell]) for cell in many) / Z


@pytest.fixture
def open_ended(golden: list[GoldenCase]) -> tuple[int, ...]:
    """A prompt that can go on in many ways."""
    [case] = [case for case in golden if case.prompt == "for i in range(10):\n    print("]
    return case.prompt_ids


def test_tokens_are_distributed_as_plain_decodings(
    start: Start, open_ended: tuple[int, ...], packaged_draft: Path, full: bool
) -> None:
    """A draft of a block: its places are drawn independently."""
    n = N_SAMPLES_FULL if full else N_SAMPLES
    with closing(start(*PLAIN, "--lanes", "8")) as daemon:
        plain = samples(daemon, open_ended, SAMPLING, range(n))
        hotter = samples(daemon, open_ended, "temp=2 top_k=4", range(n, n + n // 2))
    assert worst(plain, hotter) > 1, "the test does not see another temperature"
    with closing(start(*REJECTION, "--draft", str(packaged_draft), "--lanes", "2")) as daemon:
        drawn = samples(daemon, open_ended, SAMPLING, range(2 * n, 3 * n))
        fields = status_of(daemon)
    assert worst(plain, drawn) < 1
    assert int(fields["spec_drafted"]) > int(fields["spec_accepted"]) > n / 4


def test_so_they_are_with_a_draft_token_by_token(start: Start, test_models: Path, full: bool, gpu: bool) -> None:
    """A random model with a draft model that knows a little of it: what it says itself, through cut-offs of its own.
    On a GPU its distributions move with the width of a step, so that plain decoding's, of other widths, are others."""
    n = N_SAMPLES_FULL if full else N_SAMPLES
    model = test_models / "qwen3.gguf"
    prompt = random_prompt(12)
    with closing(start(*REJECTION, "--draft", str(model), "--lanes", "8", model=model)) as daemon:
        drawn = ask_all(daemon, prompt, "temp=0.5 top_k=4 logprobs=4", range(n, 2 * n))
        assert int(status_of(daemon)["spec_accepted"]) > n / 2
    assert misfit(drawn, 0.5) < 1
    assert misfit(drawn, 1.0) > 1, "the test does not see another temperature"
    if gpu:
        return
    with closing(start(*PLAIN, "--lanes", "8", model=model)) as daemon:
        plain = samples(daemon, prompt, "temp=0.5 top_k=4", range(n))
    assert worst(plain, [tuple(answer.tokens) for answer in drawn]) < 1


def test_a_seed_gives_the_same_tokens_again(start: Start, golden: list[GoldenCase], packaged_draft: Path) -> None:
    """Where the drafts are the same: alone and without the gate."""
    extra = "temp=1 top_p=0.95 repeat=1.1 logprobs=2 seed=9"
    with closing(start(*REJECTION, "--draft", str(packaged_draft))) as daemon:
        told = [generate(daemon, golden[1].prompt_ids, extra, 48) for _ in range(2)]
        other = generate(daemon, golden[1].prompt_ids, extra.replace("9", "10"), 48)
        status_of(daemon)
    assert told[0].tokens == told[1].tokens != other.tokens
    assert drafted(told[0]) == drafted(told[1])
    assert len(told[0].logprobs) == 48
    assert all(line.entries[0][0] == token for line, token in zip(told[0].logprobs, told[0].tokens, strict=True))
    n_drafted, n_accepted = drafted(told[0])
    assert n_drafted > n_accepted > 0


def test_a_request_that_is_taken_up_again_goes_on_with_its_draws(
    start: Start, golden: list[GoldenCase], packaged_draft: Path
) -> None:
    """Behind a draft that was all kept comes a token without one: from there the drafts begin where they did before,
    and so all is the same. From elsewhere on they are others, and so may the tokens be, but the same each time."""
    prompt = golden[1].prompt_ids
    with closing(start(*REJECTION, "--draft", str(packaged_draft))) as daemon:
        whole = generate(daemon, prompt, "temp=1 seed=4 logprobs=4", 24).tokens
        comparison = SampledComparison(NOISE_BATCHING)
        n_same = 0
        for n in range(1, 20):
            extra = f"temp=1 seed=4 generated={n} logprobs=4"
            rest, again = (generate(daemon, [*prompt, *whole[:n]], extra, 24 - n) for _ in range(2))
            compare_drawn(comparison, f"from token {n} on", again, rest)
            n_same += rest.tokens == whole[n:]
        comparison.finish()
        status_of(daemon)
    assert 0 < n_same < 19


@pytest.fixture
def short_ones(golden: list[GoldenCase]) -> list[GoldenCase]:
    return [case for case in golden if len(case.prompt_ids) < 1000]


def both_ways(
    start: Start, draft: Path, asked: Sequence[tuple[Sequence[int], str]], n: int
) -> tuple[list[Answer], list[Answer]]:
    """Answers by plain decoding, and with drafts, some of which are right."""
    with closing(start(*PLAIN, "--lanes", "1")) as daemon:
        plain = all_answers(daemon, asked, n)
    with closing(start(*REJECTION, "--draft", str(draft), "--draft-max", "4", "--lanes", "3")) as daemon:
        told = all_answers(daemon, asked, n)
        fields = status_of(daemon)
    assert int(fields["spec_drafted"]) > int(fields["spec_accepted"]) > len(asked)
    return plain, told


@pytest.mark.parametrize("extra", ["temp=0", "temp=0.0000001"])
def test_who_is_greedy_is_matched(
    start: Start, short_ones: list[GoldenCase], packaged_draft: Path, extra: str, gpu: bool
) -> None:
    asked = [(case.prompt_ids, f"ignore_eos=1 logprobs=2 {extra}") for case in short_ones]
    comparison = Comparison(NOISE_GPU if gpu else NOISE_BATCHING)
    for i, (plain, told) in enumerate(zip(*both_ways(start, packaged_draft, asked, 40), strict=True)):
        comparison.check(f"prompt {i}", told.tokens, plain.tokens, margins_of(plain.logprobs))
    comparison.finish()


def test_who_is_penalised_is_matched(
    start: Start, short_ones: list[GoldenCase], packaged_draft: Path, gpu: bool
) -> None:
    """Greedy, but the margins that are told are those before the penalties: how many texts part tells. Without their
    penalties, or drawn freely, two of three do."""
    extras = [f"ignore_eos=1 logprobs=4 temp=0 repeat={repeat}" for repeat in (1.1, 1.3)]
    asked = [(case.prompt_ids, extra) for case in short_ones for extra in extras]
    comparison = SampledComparison(NOISE_GPU if gpu else NOISE_STRANGE)
    for i, (plain, told) in enumerate(zip(*both_ways(start, packaged_draft, asked, 24), strict=True)):
        compare_drawn(comparison, f"text {i}", told, plain)
    comparison.finish(1 if gpu else SHARE_SHORT)


def test_who_is_bound_by_a_grammar_is_matched(
    start: Start, tiny_model: Path, short_ones: list[GoldenCase], packaged_draft: Path, gpu: bool
) -> None:
    """With the very draws of plain decoding, which a drawn draft would not have. (On a GPU drawn texts part.)"""
    extras = [f"logprobs=4 temp=1 top_k=4 seed={seed} grammar={ASSIGNMENTS}" for seed in (3, 4)]
    asked = [(case.prompt_ids, extra) for case in short_ones for extra in extras]
    comparison = SampledComparison(NOISE_GPU if gpu else NOISE_STRANGE)
    with TextModel(tiny_model) as text:
        for i, (plain, told) in enumerate(zip(*both_ways(start, packaged_draft, asked, N_ASSIGNMENTS), strict=True)):
            check_assignments(f"text {i}", told, text)
            compare_drawn(comparison, f"text {i}", told, plain)
    comparison.finish(1 if gpu else SHARE_SHORT)


def test_what_followed_the_same_words_is_matched(start: Start, short_ones: list[GoldenCase], gpu: bool) -> None:
    """It is drafted without a draw, and keeping it when it is what comes has the very chance that it should have: with
    the draws of plain decoding. Prompts that are asked again behind their answers, and so hot that not all copy them:
    with another seed nine of ten texts are others, in tokens that no draw gives both of."""
    temperature = 1.5
    extras = [f"ignore_eos=1 logprobs=4 temp={temperature} top_k=4 seed={seed}" for seed in (5, 6, 7)]
    prompts = [[*case.prompt_ids, *case.tokens, *case.prompt_ids] for case in short_ones if len(case.prompt_ids) < 100]
    asked = [(prompt, extra) for prompt in prompts for extra in extras]
    with closing(start(*PLAIN, "--lanes", "1")) as daemon:
        plain = all_answers(daemon, asked, 32)
    with closing(start("--draft-accept", "rejection", "--draft-gate", "off", "--lanes", "3")) as daemon:
        told = all_answers(daemon, asked, 32)
        fields = status_of(daemon)
    assert int(fields["spec_drafted"]) > int(fields["spec_accepted"]) > len(asked)
    comparison = SampledComparison(NOISE_GPU if gpu else NOISE_STRANGE)
    for i, expected in enumerate(plain):
        compare_drawn(comparison, f"text {i}", told[i], expected, temperature)
    comparison.finish(1 if gpu else SHARE_SHORT)
