"""Greedy answers are the reference's, and the same alone, in both dialects and beside other requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from luce.protocol import GenerateOk, StatusLine, StopReason
from tests.conftest import GoldenCase
from tests.daemon.conftest import Start, margins_of
from tests.daemon.same_tokens import (
    NOISE_BATCHING,
    NOISE_FAR_MOE,
    NOISE_GOLDEN,
    NOISE_GPU,
    NOISE_RANDOM,
    NOISE_RANDOM_MOE,
    Comparison,
)
from tests.daemon_driver import Answer, gen_line, random_prompt, to_bytes

FAMILIES = {
    "qwen3": NOISE_RANDOM,
    "qwen3moe": NOISE_RANDOM_MOE,
    "qwen35": NOISE_RANDOM,
    "qwen35moe": NOISE_RANDOM_MOE,
    "gemma4": NOISE_RANDOM,
    "gemma4moe": NOISE_RANDOM_MOE,
    "laguna": NOISE_RANDOM_MOE,
    "no_vocab": NOISE_RANDOM,
}


def test_plain_dialect_gives_the_reference(start: Start, golden: list[GoldenCase], tmp_path: Path) -> None:
    daemon = start(mux=False)
    comparison = Comparison(NOISE_GOLDEN)
    for i, case in enumerate(golden[:10]):  # the two longest are among others
        path = tmp_path / f"{i}.bin"
        path.write_bytes(to_bytes(case.prompt_ids))
        daemon.send(f"{path} {len(case.tokens)}")
        comparison.check(f"{i} ({case.kind})", daemon.tokens_until_end(), case.tokens, case.margins)
        ok = daemon.next_ok()
        assert ok.n_prompt == len(case.prompt_ids)
        assert ok.stop is (StopReason.EOS if case.text.endswith("<|im_end|>") else StopReason.LIMIT)
    comparison.finish()


def test_all_at_once_gives_the_reference(start: Start, golden: list[GoldenCase]) -> None:
    daemon = start("--lanes", "8", "--pool", "16384")
    daemon.send(*(gen_line(i, len(case.tokens), case.prompt_ids) for i, case in enumerate(golden)))
    answers = daemon.collect(len(golden))
    comparison = Comparison(NOISE_GOLDEN)
    for i, case in enumerate(golden):
        comparison.check(f"{i} ({case.kind})", answers[i].tokens, case.tokens, case.margins)
    comparison.finish()


def alone(start: Start, prompts: list[list[int]], n: int, model: Path) -> list[Answer]:
    daemon = start("--lanes", "1", model=model)
    return [daemon.generate(prompt, n, "logprobs=2 ignore_eos=1") for prompt in prompts]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_answers_the_same_alone_and_among_others(
    start: Start, test_models: Path, family: str, gpu: bool
) -> None:
    """Random weights: near-ties are common, so what matters is that no clear step ever differs."""
    model = test_models / f"{family}.gguf"
    prompts = [random_prompt(20 + 37 * i, seed=i) for i in range(8)]
    references = alone(start, prompts, 48, model)
    daemon = start("--lanes", "4", "--ctx", "2048", "--pool", "4096", model=model)
    daemon.send(*(gen_line(i, 48, prompt, "ignore_eos=1") for i, prompt in enumerate(prompts)))
    answers = daemon.collect(len(prompts))
    is_moe = FAMILIES[family] == NOISE_RANDOM_MOE
    comparison = Comparison(NOISE_FAR_MOE if gpu and is_moe else FAMILIES[family])
    for i, reference in enumerate(references):
        assert len(set(reference.tokens)) > 8
        comparison.check(f"{family} {i}", answers[i].tokens, reference.tokens, margins_of(reference.logprobs))
    comparison.finish(share_allowed=1)


def test_a_pool_too_small_for_all_lanes_pauses_the_youngest_and_changes_no_answer(
    start: Start, tiny_model: Path, golden: list[GoldenCase], gpu: bool
) -> None:
    """That each family's memory comes back to the bit is native/tests/llama_decoder_test.cpp's to show."""
    prompts = [list(case.prompt_ids) for case in golden[:8]]
    daemon = start("--lanes", "4", "--ctx", "512", "--pool", "512")
    daemon.send(*(gen_line(i, 180, prompt, "ignore_eos=1") for i, prompt in enumerate(prompts)))
    answers = daemon.collect(len(prompts))
    daemon.send("status")
    status = daemon.next_reply()
    assert isinstance(status, StatusLine)
    assert int(dict(status.fields)["suspensions"]) > 0
    references = alone(start, prompts, 180, tiny_model)
    comparison = Comparison(NOISE_GPU if gpu else NOISE_BATCHING)
    for i, reference in enumerate(references):
        assert isinstance(answers[i].reply, GenerateOk)
        comparison.check(str(i), answers[i].tokens, reference.tokens, margins_of(reference.logprobs))
    comparison.finish()


def test_models_that_are_not_in_the_repository(start: Start, shared_models: Path, golden: list[GoldenCase]) -> None:
    daemon = start(model=shared_models / "luce-tiny-moe-Q8_0.gguf")
    answer = daemon.generate(golden[3].prompt_ids, 32)
    assert isinstance(answer.reply, GenerateOk)
    assert answer.reply.stop is StopReason.EOS
