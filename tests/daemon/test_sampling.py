"""Sampling: seeds, resumption, constraints and biases mean what the protocol says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from luce.protocol import Err, ErrorCode, GenerateOk, StopReason
from luce.protocol import percent_encode as encode
from luce.supervisor.text import TextModel
from tests.conftest import GoldenCase
from tests.daemon.conftest import Start
from tests.daemon.exactness import all_answers, compare_drawn
from tests.daemon.same_tokens import NOISE_BATCHING, NOISE_CUTS, SHARE_SHORT, SampledComparison
from tests.daemon_driver import Answer

SAMPLED = (
    "temp=1.2 top_p=0.95 top_k=50 min_p=0.01 repeat=1.1 presence=0.2 frequency=0.1 seed=77 ignore_eos=1 logprobs=4"
)
DIGITS = encode('root ::= [0-9]{3} "-" [0-9]{4}')


@pytest.fixture
def text(tiny_model: Path) -> Iterator[TextModel]:
    with TextModel(tiny_model) as model:
        yield model


@pytest.fixture
def exact_logits(gpu: bool) -> None:
    """For tests that draw tokens: a draw near a border falls to the other side if a logit is rounded otherwise."""
    if gpu:
        pytest.skip("CUDA's kernels round by the batch's size, so that drawn texts part; the greedy ones are compared")


@pytest.mark.usefixtures("exact_logits")
def test_a_seed_gives_the_same_tokens_alone_and_among_others(start: Start, golden: list[GoldenCase]) -> None:
    daemon = start("--lanes", "4")
    seeds = (77, 5, 6, 7)
    asked = [(case.prompt_ids, SAMPLED.replace("77", str(seed))) for case in golden[:4] for seed in seeds]
    alone = [daemon.generate(prompt, 40, extra) for prompt, extra in asked]
    assert len({tuple(answer.tokens) for answer in alone}) == len(asked)
    for (prompt, extra), answer in zip(asked[:4], alone, strict=False):
        assert daemon.generate(prompt, 40, extra).tokens == answer.tokens
    comparison = SampledComparison(NOISE_BATCHING)
    for i, answer in enumerate(all_answers(daemon, asked, 40)):
        compare_drawn(comparison, f"text {i} among others", answer, alone[i])
    comparison.finish(SHARE_SHORT)


@pytest.mark.usefixtures("exact_logits")
def test_constrained_tokens_are_the_same_alone_and_among_others(
    start: Start, golden: list[GoldenCase], text: TextModel
) -> None:
    """As agents send them: a grammar that waits for its word, a budget of thinking, both, and a grammar at once."""
    [think] = text.tokenize("<think>", parse_special=True)
    [end] = text.tokenize("</think>", parse_special=True)
    lazy = f"grammar={encode('root ::= [^.]* [.] [a-z]+')} grammar_lazy=1 triggers=word:{encode('e ')},word:never"
    budget = f"think_start={think} think_end={end} think_message=70,71 gen_prompt={encode('<think>')} think_budget="
    constraints = (lazy, f"{budget}5", f"{lazy} {budget}9", f"grammar={encode('root ::= [a-z ]+')}")
    samplings = ("temp=0.8 top_k=40 top_p=0.95", "temp=1", "temp=1.1 top_p=0.9 repeat=1.1", "")
    asked = [
        (case.prompt_ids, f"{constraint} {sampling} seed={i} logprobs=4")
        for i, case in enumerate(golden[:2])
        for constraint in constraints
        for sampling in samplings
    ]
    one_lane = start("--lanes", "1")
    alone = [one_lane.generate(prompt, 40, extra) for prompt, extra in asked]
    assert all(isinstance(answer.reply, GenerateOk) for answer in alone)
    comparison = SampledComparison(NOISE_BATCHING)
    for i, answer in enumerate(all_answers(start("--lanes", "4"), asked, 40)):
        compare_drawn(comparison, f"text {i} among others", answer, alone[i])
    comparison.finish(SHARE_SHORT)


def test_without_a_seed_requests_differ_and_the_daemons_seed_makes_them_equal(
    start: Start, golden: list[GoldenCase]
) -> None:
    prompt = golden[0].prompt_ids
    hot = "temp=2 ignore_eos=1"
    free = start()
    assert free.generate(prompt, 30, hot).tokens != free.generate(prompt, 30, hot).tokens
    seeded = start("--seed", "5")
    assert seeded.generate(prompt, 30, hot).tokens == seeded.generate(prompt, 30, hot + " seed=5").tokens


@pytest.mark.usefixtures("exact_logits")
@pytest.mark.parametrize(
    "extra", [SAMPLED, SAMPLED + f" grammar={encode('root ::= [a-z ]+')}", "repeat=1.3 logprobs=4"]
)
def test_a_resumed_request_goes_on_as_if_it_had_never_stopped(
    start: Start, golden: list[GoldenCase], extra: str
) -> None:
    prompt = list(golden[0].prompt_ids)
    daemon = start()
    whole = daemon.generate(prompt, 40, extra)
    assert len(whole.tokens) == 40
    comparison = SampledComparison(NOISE_CUTS)
    for k in (1, 13, 20, 27, 34):
        rest = daemon.generate(prompt + whole.tokens[:k], 40 - k, f"{extra} generated={k}")
        compare_drawn(comparison, f"from token {k} on", rest, Answer(whole.tokens[k:], None, whole.logprobs[k:]))
    comparison.finish()


def test_a_grammar_is_obeyed_and_ends_the_answer(start: Start, golden: list[GoldenCase], text: TextModel) -> None:
    daemon = start()
    for extra in ("", "temp=3 seed=1", "temp=3 seed=2"):
        answer = daemon.generate(golden[3].prompt_ids, 40, f"grammar={DIGITS} {extra}")
        assert isinstance(answer.reply, GenerateOk), answer.reply
        assert answer.reply.stop is StopReason.EOS
        written = text.detokenize(answer.tokens[:-1]).decode()
        head, tail = written.split("-")
        assert (len(head), len(tail)) == (3, 4)
        assert (head + tail).isdigit()


def test_a_lazy_grammar_waits_for_its_trigger(start: Start, golden: list[GoldenCase]) -> None:
    prompt = golden[0].prompt_ids
    daemon = start()
    free = daemon.generate(prompt, 20).tokens
    untriggered = daemon.generate(prompt, 20, f"grammar={DIGITS} grammar_lazy=1 triggers=word:{encode('no such word')}")
    assert untriggered.tokens == free
    triggered = daemon.generate(
        prompt, 20, f"grammar={encode('root ::= [a-z ]*')} grammar_lazy=1 triggers=token:{free[0]}"
    )
    assert triggered.tokens[0] == free[0]


def test_logit_bias_bans_and_forces(start: Start, golden: list[GoldenCase]) -> None:
    prompt = golden[0].prompt_ids
    daemon = start()
    first = daemon.generate(prompt, 1).tokens[0]
    assert daemon.generate(prompt, 1, f"logit_bias={first}:-inf").tokens[0] != first
    assert daemon.generate(prompt, 3, "logit_bias=77:1000").tokens == [77, 77, 77]


def test_logprobs_are_a_distribution_with_the_chosen_token_first(start: Start, golden: list[GoldenCase]) -> None:
    answer = start().generate(golden[0].prompt_ids, 8, "logprobs=5")
    assert [line.index for line in answer.logprobs] == list(range(8))
    for token, line in zip(answer.tokens, answer.logprobs, strict=True):
        assert len(line.entries) == 6
        assert line.entries[0] == line.entries[1]  # greedy: the chosen is the likeliest
        assert line.entries[0][0] == token
        values = [logprob for _, logprob in line.entries[1:]]
        assert values == sorted(values, reverse=True)
        assert sum(math.exp(value) for value in values) <= 1.0001
    assert all(math.isfinite(logprob) for line in answer.logprobs for _, logprob in line.entries)


def test_stop_ids_end_the_answer_and_are_part_of_it(start: Start, golden: list[GoldenCase]) -> None:
    daemon = start()
    free = daemon.generate(golden[0].prompt_ids, 20).tokens
    answer = daemon.generate(golden[0].prompt_ids, 20, f"stop={free[6]},{free[9]}")
    at = min(free.index(free[6]), free.index(free[9]))
    assert answer.tokens == free[: at + 1]
    assert isinstance(answer.reply, GenerateOk)
    assert answer.reply.stop is StopReason.STOP


def test_a_spent_reasoning_budget_forces_its_end(start: Start, golden: list[GoldenCase], text: TextModel) -> None:
    daemon = start()
    [think] = text.tokenize("<think>", parse_special=True)
    [end] = text.tokenize("</think>", parse_special=True)
    # The prompt has opened the block already (gen_prompt), so the budget counts from the first token.
    extra = f"think_budget=3 think_start={think} think_end={end} think_message=70,71 gen_prompt={encode('<think>')}"
    answer = daemon.generate(golden[0].prompt_ids, 10, extra + " ignore_eos=1")
    assert answer.tokens[3:6] == [70, 71, end]


def test_a_model_without_texts_refuses_what_needs_them(start: Start, test_models: Path) -> None:
    daemon = start(model=test_models / "no_vocab.gguf")
    answer = daemon.generate([1, 2, 3], 5, f"grammar={DIGITS}")
    assert isinstance(answer.reply, Err)
    assert answer.reply.code is ErrorCode.UNSUPPORTED
    assert len(daemon.generate([1, 2, 3], 5, "temp=1 seed=3 repeat=1.2").tokens) == 5


def test_a_resumed_end_token_under_a_grammar_is_refused(start: Start, golden: list[GoldenCase]) -> None:
    ended = golden[3].tokens[-1]
    answer = start().generate([*golden[3].prompt_ids, ended], 4, f"generated=1 grammar={DIGITS}")
    assert isinstance(answer.reply, Err)
    assert answer.reply.code is ErrorCode.BAD_ARGS
