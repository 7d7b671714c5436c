"""Drafts with branches change when tokens come, never which; where no branch can be verified, chains are.

The branches are verified in batches of other sizes than plain decoding's, so the rule of same_tokens.py applies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from luce.protocol import GenerateOk
from tests.daemon.conftest import Start
from tests.daemon.exactness import done, drafted, generate, status_of
from tests.daemon.histories import make_prompts, make_references
from tests.daemon.same_tokens import NOISE_CUTS, NOISE_RANDOM, NOISE_RANDOM_MOE, Comparison, noise_of_random
from tests.daemon.test_histories import play_batch
from tests.daemon.test_speculation import Reference, all_at_once, control_of, plainly, random_prompts
from tests.daemon_driver import DaemonDriver

N_TOKENS = 48
N_TOKENS_FULL = 256
WITHOUT_STATE = ["qwen3", "qwen3moe", "gemma4", "laguna"]
MOE = {"qwen3moe", "laguna"}
TREE = 24


def arguments_of(test_models: Path, architecture: str) -> tuple[str, ...]:
    draft = test_models / "drafts" / f"dflash-{architecture}.gguf"
    return ("--draft", str(draft), "--draft-ngram", "off", "--draft-tree", str(TREE))


def comparison_of(architecture: str, gpu: bool) -> Comparison:
    return Comparison(noise_of_random(architecture in MOE, gpu))


def finish(comparison: Comparison) -> None:
    """Random texts come to near-ties; what parts at a clear step has failed before."""
    comparison.finish(share_allowed=1)


def check_all(comparison: Comparison, name: str, texts: Sequence[Sequence[int]], references: list[Reference]) -> None:
    for i, (tokens, reference) in enumerate(zip(texts, references, strict=True)):
        comparison.check(f"{name} {i}", tokens, reference.tokens, reference.margins)


@pytest.mark.parametrize("architecture", WITHOUT_STATE)
def test_every_architecture_without_state(
    start: Start, test_models: Path, architecture: str, full: bool, gpu: bool
) -> None:
    """A tree of random guesses goes wrong at nearly every step, somewhere: nearly every step takes branches back."""
    n = N_TOKENS_FULL if full else N_TOKENS
    model = test_models / f"{architecture}.gguf"
    prompts = random_prompts(40 if full else 5, seed=3)
    references = plainly(start("--draft-ngram", "off", model=model), prompts, n)
    goes_far = full and architecture in MOE
    comparison = Comparison(math.inf) if goes_far else comparison_of(architecture, gpu)
    for gate, lanes in product(("off", "on"), ("1", "4")) if full else (("off", "4"), ("on", "1")):
        arguments = (*arguments_of(test_models, architecture), "--draft-adaptive", gate, "--lanes", lanes)
        with closing(start(*arguments, model=model)) as daemon:
            name = f"gate {gate}, {lanes} lanes, prompt"
            check_all(comparison, name, all_at_once(daemon, prompts, n), references)
            fields = status_of(daemon)
            if gate == "off":
                # The most that a step may take, but for an answer's last ones.
                assert int(fields["spec_drafted"]) > 0.8 * TREE * int(fields["spec_steps"])
    if goes_far:
        control = control_of(start("--draft-max", "0", "--lanes", "4", model=model), prompts, references)
        comparison.finish_like(control, NOISE_RANDOM_MOE)
    finish(comparison)


@pytest.mark.parametrize("architecture", ["qwen3", pytest.param("gemma4", marks=pytest.mark.full_only)])
def test_what_a_tree_leaves_is_reused_kept_and_put_back(
    start: Start, test_models: Path, architecture: str, tmp_path: Path, gpu: bool
) -> None:
    """Pages and tails that are taken right behind a tree's step hold the text's way through it and nothing else."""
    model = test_models / f"{architecture}.gguf"
    prompts = random_prompts(3, seed=17)
    references = plainly(start("--draft-ngram", "off", model=model), prompts, N_TOKENS)
    comparison = comparison_of(architecture, gpu)
    arguments = (*arguments_of(test_models, architecture), "--draft-adaptive", "off", "--disk-cache", str(tmp_path))

    def check(daemon: DaemonDriver, name: str) -> None:
        n_compared = 0
        for i, (prompt, reference) in enumerate(zip(prompts, references, strict=True)):
            first = N_TOKENS // 3
            begun = generate(daemon, prompt, "", first)
            done(daemon, f"snapshot id=2 slot={i} of=1")
            status_of(daemon)
            comparison.check(f"{name} {i}", begun.tokens, reference.tokens[:first], reference.margins)
            if begun.tokens != reference.tokens[:first]:  # at a near-tie: it went on as another text
                continue
            n_compared += 1
            going_on = [*prompt, *begun.tokens]
            for extra in (f"restore={i}", ""):
                told = generate(daemon, going_on, extra, N_TOKENS - first)
                assert told.ok.n_reused >= len(prompt)
                comparison.check(
                    f"{name} {i} {extra}", told.tokens, reference.tokens[first:], reference.margins[first:]
                )
                status_of(daemon)
        assert n_compared > 0

    with closing(start(*arguments, model=model)) as daemon:
        check(daemon, "at first")
        done(daemon, "park")
        done(daemon, "unpark")
        check(daemon, "unparked")
    with closing(start(*arguments, model=model)) as daemon:
        check(daemon, "from disk")
    finish(comparison)


def test_a_tree_stays_within_the_context_the_pool_and_the_request(start: Start, test_models: Path, gpu: bool) -> None:
    model = test_models / "qwen3.gguf"
    prompts = random_prompts(4, seed=23)
    n = 40
    references = plainly(start("--draft-ngram", "off", model=model), prompts, n)
    comparison = comparison_of("qwen3", gpu)
    n_ctx = max(len(prompt) for prompt in prompts) + n
    # Four lanes in a pool for two: trees are made smaller, withdrawn, and lanes suspended.
    arguments = (*arguments_of(test_models, "qwen3"), "--draft-adaptive", "off", "--lanes", "4")
    with closing(start(*arguments, "--ctx", str(n_ctx), "--pool", str(2 * n_ctx), model=model)) as daemon:
        check_all(comparison, "prompt", all_at_once(daemon, prompts, n), references)
        status_of(daemon)
        for prompt, reference in zip(prompts, references, strict=True):
            for short in (1, 2, 3, 5):
                told = generate(daemon, prompt, "reuse=0", short)
                comparison.check("short", told.tokens, reference.tokens[:short], reference.margins)
    finish(comparison)


@pytest.mark.parametrize("architecture", ["qwen3", pytest.param("gemma4", marks=pytest.mark.full_only)])
def test_random_histories(
    start: Start, test_models: Path, tmp_path: Path, architecture: str, gpu: bool, full: bool
) -> None:
    """Those of test_histories.py, with cancels, restores and pages on their way to disk between trees."""
    model = test_models / f"{architecture}.gguf"
    with closing(start("--lanes", "1", "--ctx", "256", model=model)) as alone:
        references = make_references(alone, make_prompts(1, 230))
        ready = alone.ready
    arguments = (*arguments_of(test_models, architecture), "--draft-adaptive", "off")

    def start_with_trees(*more: str, model: Path, mux: bool) -> DaemonDriver:
        return start(*arguments, *more, model=model, mux=mux)

    n_batches, n_histories = (20, 15) if full else (1, 5)
    for batch in range(n_batches):
        seed = f"{architecture} with trees {batch}"
        play_batch(start_with_trees, model, references, ready, tmp_path, seed, n_histories, NOISE_RANDOM, gpu, full)


def test_with_state_drafts_are_chains_and_the_log_says_why(
    start: Start, packaged_draft: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    prompts = random_prompts(3, seed=29)
    references = plainly(start("--draft-ngram", "off"), prompts, N_TOKENS)
    capfd.readouterr()
    arguments = ("--draft", str(packaged_draft), "--draft-adaptive", "off", "--draft-ngram", "off")
    told = []
    for budget in ("0", "16"):
        with closing(start(*arguments, "--draft-tree", budget)) as daemon:
            told.append([generate(daemon, prompt, "reuse=0", N_TOKENS) for prompt in prompts])
            status_of(daemon)
        lines = [line for line in capfd.readouterr().err.splitlines() if "--draft-tree" in line]
        assert len(lines) == (0 if budget == "0" else 1), lines
    assert "state" in lines[0]
    chains, trees = told
    assert [drafted(answer) for answer in chains] == [drafted(answer) for answer in trees]
    comparison = Comparison(NOISE_CUTS)
    check_all(comparison, "prompt", [answer.tokens for answer in trees], references)
    finish(comparison)


@pytest.mark.parametrize(
    ("draft", "reason"), [("simple-qwen3", "(draft) names one token a place"), (None, "(ngram) names one token")]
)
def test_drafts_without_alternatives_are_chains_and_the_log_says_why(
    start: Start, test_models: Path, draft: str | None, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    model = test_models / "qwen3.gguf"
    path = test_models / "drafts" / f"{draft}.gguf"
    source = ("--draft-ngram", "on") if draft is None else ("--draft", str(path), "--draft-ngram", "off")
    with closing(start(*source, "--draft-adaptive", "off", "--draft-tree", "16", model=model)) as daemon:
        told = generate(daemon, [60, 61, 62, 63] * 8, "reuse=0", N_TOKENS)
        assert isinstance(told.reply, GenerateOk)
        assert drafted(told)[0] > 0
    [line] = [line for line in capfd.readouterr().err.splitlines() if "--draft-tree" in line]
    assert reason in line
