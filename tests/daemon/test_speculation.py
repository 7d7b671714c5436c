"""Speculation changes when tokens come, never which: every architecture, every source, alone and beside others.

Drafts are verified in batches of other sizes than plain decoding's, so the rule of same_tokens.py applies.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from luce.protocol import Err, GenerateOk, Speculation
from luce.supervisor.text import TextModel
from scripts.bench.speculation.prompts import load_rendered
from tests.conftest import GoldenCase
from tests.daemon.conftest import Start, margins_of
from tests.daemon.exactness import (
    ASSIGNMENTS,
    N_ASSIGNMENTS,
    all_answers,
    check_assignments,
    compare_drawn,
    drafted,
    entries_of,
    generate,
    status_of,
)
from tests.daemon.same_tokens import (
    NOISE_BATCHING,
    NOISE_GOLDEN,
    NOISE_GPU,
    NOISE_RANDOM,
    NOISE_RANDOM_MOE,
    NOISE_STRANGE,
    SHARE_SHORT,
    Comparison,
    SampledComparison,
    noise_of_random,
    parting,
)
from tests.daemon_driver import Answer, DaemonDriver, gen_line

N_TOKENS = 48
N_TOKENS_FULL = 256
ARCHITECTURES = ["qwen3", "qwen3moe", "qwen35", "qwen35moe", "gemma4", "laguna"]
MOE = {"qwen3moe", "qwen35moe", "laguna"}


@dataclass(frozen=True)
class Reference:
    tokens: list[int]
    margins: list[float]


def random_prompts(n: int, seed: int) -> list[list[int]]:
    """Some repeat themselves, so that the n-gram lookup has something to find."""
    rng = random.Random(seed)
    prompts = []
    for i in range(n):
        block = [rng.randrange(60, 900) for _ in range(rng.randrange(5, 40))]
        prompts.append(block * (1 + i % 3) + [rng.randrange(60, 900)])
    return prompts


def plainly(daemon: DaemonDriver, prompts: Sequence[Sequence[int]], n: int) -> list[Reference]:
    references = []
    for prompt in prompts:
        told = generate(daemon, prompt, "reuse=0 logprobs=2", n)
        assert isinstance(told.reply, GenerateOk), told.reply
        references.append(Reference(told.tokens, margins_of(told.logprobs)))
    return references


def all_at_once(daemon: DaemonDriver, prompts: Sequence[Sequence[int]], n: int) -> list[list[int]]:
    """All prompts in in_flight together, in as many lanes as the daemon has."""
    daemon.send(*(gen_line(i, n, prompt, "ignore_eos=1 reuse=0") for i, prompt in enumerate(prompts)))
    answers = daemon.collect(len(prompts))
    assert all(isinstance(answers[i].reply, GenerateOk) for i in range(len(prompts)))
    return [answers[i].tokens for i in range(len(prompts))]


def control_of(daemon: DaemonDriver, prompts: Sequence[Sequence[int]], references: Sequence[Reference]) -> Comparison:
    """Plain decoding, which batches otherwise than the references did."""
    control = Comparison(math.inf)
    texts = all_at_once(daemon, prompts, len(references[0].tokens))
    for i, (tokens, reference) in enumerate(zip(texts, references, strict=True)):
        control.check(f"control {i}", tokens, reference.tokens, reference.margins)
    return control


def packaged_prompts(model: Path, golden: Sequence[GoldenCase], full: bool) -> list[Sequence[int]]:
    """Some short ones of each kind; with --full 100 of the packaged sets: copies, edits, code, chat, tool calls."""
    if full:
        return [prompt.ids for prompts in load_rendered(model, n_prompts=20).values() for prompt in prompts]
    return [case.prompt_ids for case in golden[::2] if len(case.prompt_ids) < 1000]


@pytest.mark.parametrize("gate", ["off", "on"])
def test_the_packaged_model_and_drafter(
    start: Start, tiny_model: Path, golden: list[GoldenCase], packaged_draft: Path, gate: str, full: bool
) -> None:
    """A gate drafts what pays by its measurements: on a busy machine that may be nothing."""
    n = N_TOKENS_FULL if full else N_TOKENS
    prompts = packaged_prompts(tiny_model, golden, full)
    references = plainly(start("--draft-ngram", "off"), prompts, n)
    comparison = Comparison(NOISE_BATCHING)
    drafting = ("--draft", str(packaged_draft), "--draft-adaptive", gate)
    with closing(start(*drafting, "--lanes", "1", warm_up=True)) as alone:
        n_drafted = 0
        for i, (prompt, reference) in enumerate(zip(prompts, references, strict=True)):
            told = generate(alone, prompt, "reuse=0", n)
            comparison.check(f"prompt {i} alone", told.tokens, reference.tokens, reference.margins)
            n_drafted += drafted(told)[0]
        assert n_drafted > 0 or gate == "on"
        fields = status_of(alone)
        assert int(fields["spec_drafted"]) == n_drafted
    with closing(start(*drafting, "--lanes", "8", warm_up=True)) as busy:
        for i, tokens in enumerate(all_at_once(busy, prompts, n)):
            comparison.check(f"prompt {i} beside others", tokens, references[i].tokens, references[i].margins)
        status_of(busy)
    comparison.finish()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_with_a_drafter(
    start: Start, test_models: Path, architecture: str, full: bool, gpu: bool
) -> None:
    """Random drafts are nearly always wrong, so nearly every step goes back; the n-gram lookup's are often right."""
    n = N_TOKENS_FULL if full else N_TOKENS
    model = test_models / f"{architecture}.gguf"
    draft = test_models / "drafts" / f"dflash-{architecture}.gguf"
    prompts = random_prompts(100 if full else 5, seed=5)
    references = plainly(start("--draft-ngram", "off", model=model), prompts, n)
    goes_far = full and architecture in MOE
    comparison = Comparison(math.inf if goes_far else noise_of_random(architecture in MOE, gpu))
    for lanes in ("1", "8"):
        arguments = ("--draft", str(draft), "--draft-adaptive", "off", "--draft-max", "5")
        with closing(start(*arguments, "--lanes", lanes, model=model)) as daemon:
            for i, tokens in enumerate(all_at_once(daemon, prompts, n)):
                name = f"prompt {i} in {lanes} lanes"
                comparison.check(name, tokens, references[i].tokens, references[i].margins)
            assert int(status_of(daemon)["spec_drafted"]) > 0
    if goes_far:
        control = control_of(start("--draft-max", "0", "--lanes", "8", model=model), prompts, references)
        comparison.finish_like(control, NOISE_RANDOM_MOE)
    comparison.finish(share_allowed=1)  # random texts come to near-ties; what parts at a clear step fails above


@pytest.mark.parametrize("architecture", ["qwen35", "qwen35moe"])
def test_without_states_to_go_back_to(start: Start, test_models: Path, architecture: str, gpu: bool) -> None:
    """A copy of the state is taken instead, and what was right is computed again, at the end of an answer too."""
    model = test_models / f"{architecture}.gguf"
    draft = test_models / "drafts" / f"dflash-{architecture}.gguf"
    prompts = random_prompts(6, seed=17)
    references = plainly(start("--draft-ngram", "off", model=model), prompts, N_TOKENS)
    comparison = Comparison(noise_of_random(architecture in MOE, gpu))
    for lanes in ("1", "3"):
        arguments = ("--draft", str(draft), "--draft-adaptive", "off", "--draft-max", "5", "--draft-state-memory", "0")
        with closing(start(*arguments, "--lanes", lanes, model=model)) as daemon:
            for i, tokens in enumerate(all_at_once(daemon, prompts, N_TOKENS)):
                comparison.check(f"prompt {i}, {lanes} lanes", tokens, references[i].tokens, references[i].margins)
            prompt = [*prompts[0], *references[0].tokens, 77]
            told = generate(daemon, prompt, "", N_TOKENS)
            assert drafted(told)[0] > 0
            if comparison.unclear == []:
                assert told.ok.n_reused == len(prompt) - 2  # all of the answer but its last token
            status_of(daemon)
    comparison.finish(share_allowed=1)


@pytest.mark.parametrize(
    ("architecture", "draft", "kind"),
    [
        ("qwen3", "simple-qwen3", "draft"),
        ("qwen3", "eagle3-qwen3", "eagle3"),
        ("qwen35", "eagle3-qwen35", "eagle3"),
        ("qwen35", "mtp-qwen35", "mtp"),
        ("qwen35_mtp", "", "mtp"),  # the heads in the model's own file
        ("gemma4", "assistant-gemma4", "assistant"),
    ],
)
def test_every_kind_of_draft_model(
    start: Start, test_models: Path, architecture: str, draft: str, kind: str, full: bool
) -> None:
    """Each in the same engine, with texts that are reused: what the draft remembers of them comes back with them."""
    n = N_TOKENS_FULL if full else N_TOKENS
    model = test_models / f"{architecture}.gguf"
    source = ("--draft", str(test_models / "drafts" / f"{draft}.gguf")) if draft else ("--mtp",)
    prompts = random_prompts(6, seed=11)
    references = plainly(start("--draft-ngram", "off", model=model), prompts, n)
    comparison = Comparison(NOISE_RANDOM)
    arguments = (*source, "--draft-adaptive", "off", "--draft-max", "4", "--draft-ngram", "off", "--lanes", "3")
    with closing(start(*arguments, model=model)) as daemon:
        assert dict(daemon.ready.fields)["spec"] == kind
        for i, tokens in enumerate(all_at_once(daemon, prompts, n)):
            comparison.check(f"prompt {i}", tokens, references[i].tokens, references[i].margins)
        for i, prompt in enumerate(prompts):
            told = generate(daemon, prompt, "", n)
            assert drafted(told)[0] > 0
            comparison.check(f"prompt {i} again", told.tokens, references[i].tokens, references[i].margins)
        status_of(daemon)
    comparison.finish(share_allowed=1)


def test_lookup_needs_no_draft_model(start: Start, golden: list[GoldenCase]) -> None:
    [copying] = [case for case in golden if case.kind == "copy"]
    with closing(start("--draft-adaptive", "off")) as daemon:
        told = generate(daemon, copying.prompt_ids, "reuse=0", len(copying.tokens))
        assert told.tokens == list(copying.tokens)
        n_drafted, n_accepted = drafted(told)
        assert n_drafted >= n_accepted > 0
        assert dict(daemon.ready.fields)["spec"] == "ngram"


@pytest.mark.parametrize("gate", ["off", "on"])
def test_sampled_tokens_are_those_of_plain_decoding(
    start: Start, tiny_model: Path, golden: list[GoldenCase], packaged_draft: Path, gate: str, full: bool, gpu: bool
) -> None:
    """Each token's draw depends on seed and place alone, however many were verified together, and whoever chose how
    many."""
    if gpu:
        pytest.skip("CUDA's kernels round by the batch's size, so that drawn texts part; the greedy ones are compared")
    n = N_TOKENS_FULL if full else N_TOKENS
    prompts = packaged_prompts(tiny_model, golden, full)
    extra = "reuse=0 temp=0.8 top_p=0.95 seed=7 repeat=1.1 logprobs=4"
    with closing(start("--draft-ngram", "off")) as plain:
        expected = [generate(plain, prompt, extra, n) for prompt in prompts]
    comparison = SampledComparison(NOISE_BATCHING)
    for lanes in ("1", "8"):
        with closing(start("--draft", str(packaged_draft), "--draft-adaptive", gate, "--lanes", lanes)) as daemon:
            daemon.send(*(gen_line(i, n, prompt, f"ignore_eos=1 {extra}") for i, prompt in enumerate(prompts)))
            answers = daemon.collect(len(prompts))
            for i, reference in enumerate(expected):
                compare_drawn(comparison, f"prompt {i} in {lanes} lanes", answers[i], reference)
            assert int(status_of(daemon)["spec_accepted"]) > 0 or gate == "on"
    if full:
        comparison.finish()
    else:
        comparison.finish(SHARE_SHORT)


@pytest.fixture(scope="module")
def drawn_plainly() -> dict[str, list[Answer]]:
    """By architecture, once they have been drawn: each kind of draft model is compared with the same answers."""
    return {}


@pytest.mark.parametrize(
    ("architecture", "draft", "kind", "knows"),
    [
        ("qwen3", "drafts/simple-qwen3", "draft", True),
        ("qwen3", "drafts/dflash-qwen3", "dflash", False),
        ("qwen3", "drafts/dspark-qwen3", "dflash", False),
        ("qwen35", "drafts/dflash2-qwen35", "dflash", False),
        ("qwen3", "drafts/eagle3-qwen3", "eagle3", False),
        ("gemma4", "gemma4", "draft", True),  # it drafts for itself
        ("gemma4", "drafts/dflash-gemma4", "dflash", False),
        ("gemma4", "drafts/assistant-gemma4", "assistant", False),
        ("qwen35", "qwen35", "draft", True),
        ("qwen35", "drafts/mtp-qwen35", "mtp", False),
        ("qwen35", "drafts/eagle3-qwen35", "eagle3", False),
    ],
)
def test_sampled_tokens_are_those_of_plain_decoding_with_every_kind_of_draft_model(
    start: Start, test_models: Path, drawn_plainly: dict[str, list[Answer]], architecture: str, draft: str, kind: str,
    knows: bool, full: bool, gpu: bool,
) -> None:  # fmt: skip
    """What drafts know of the model is nothing, so that each step goes back, or a part: some go back half the way.

    Random weights amplify roundings (a logprob moved by 0.17, within NOISE_RANDOM), so what parts must have parted at
    an edge between tokens: all four that can be drawn are told. The texts are so short that few do (3 of 432), far
    below SHARE_SHORT, and so long that with another seed all do."""
    if gpu:
        pytest.skip("CUDA's kernels round by the batch's size, so that drawn texts part; the greedy ones are compared")
    n = N_TOKENS // 2
    temperature = 0.7
    model = test_models / f"{architecture}.gguf"
    extra = f"ignore_eos=1 temp={temperature} top_k=4 logprobs=4"
    prompts = random_prompts(8, seed=29)
    asked = [(prompt, f"{extra} seed={seed}") for prompt in prompts for seed in range(20 if full else 3)]
    if architecture not in drawn_plainly:
        with closing(start("--draft-max", "0", "--lanes", "1", model=model)) as plain:
            drawn_plainly[architecture] = all_answers(plain, asked, n)
    expected = drawn_plainly[architecture]
    assert len({tuple(answer.tokens) for answer in expected}) == len(asked)
    comparison = SampledComparison(NOISE_RANDOM)
    source = ("--draft", str(test_models / f"{draft}.gguf"), "--draft-adaptive", "off", "--draft-max", "4")
    for lanes in ("1", "3") if full else ("3",):
        with closing(start(*source, "--draft-ngram", "off", "--lanes", lanes, model=model)) as daemon:
            assert dict(daemon.ready.fields)["spec"] == kind
            for i, answer in enumerate(all_answers(daemon, asked, n)):
                compare_drawn(comparison, f"text {i} in {lanes} lanes", answer, expected[i], temperature)
            fields = status_of(daemon)
            n_drafted, n_accepted = int(fields["spec_drafted"]), int(fields["spec_accepted"])
            assert n_drafted - n_accepted > len(asked)
            assert n_accepted > len(asked) or not knows
    comparison.finish(SHARE_SHORT)


def test_grammar_and_logprobs_go_with_the_verified_tokens(
    start: Start, tiny_model: Path, golden: list[GoldenCase], packaged_draft: Path, gpu: bool
) -> None:
    """Greedy and drawn. The grammar reads what was verified and nothing of what was not, or else it would forbid what
    follows, and the text would part. SHARE_SHORT of all is fewer than the greedy ones and than the drawn ones, so
    neither may all part. On a GPU drawn texts part by themselves, and the greedy ones alone are compared."""
    noise = NOISE_GPU if gpu else NOISE_STRANGE
    draws = () if gpu else ("temp=1 top_k=4 seed=0", "temp=1 top_k=4 seed=1")
    extras = [f"logprobs=4 grammar={ASSIGNMENTS} {how}" for how in ("", *draws)]
    asked = [(prompt, extra) for prompt in packaged_prompts(tiny_model, golden, full=False) for extra in extras]
    with closing(start("--draft-max", "0", "--lanes", "1")) as daemon:
        plain = all_answers(daemon, asked, N_ASSIGNMENTS)
    arguments = ("--draft", str(packaged_draft), "--draft-adaptive", "off", "--draft-max", "4", "--lanes", "3")
    with closing(start(*arguments)) as daemon:
        speculative = all_answers(daemon, asked, N_ASSIGNMENTS)
        fields = status_of(daemon)
    assert int(fields["spec_drafted"]) > 2 * int(fields["spec_accepted"]) > 2 * len(asked)
    comparison = SampledComparison(noise)
    with TextModel(tiny_model) as text:
        for i, (told, expected) in enumerate(zip(speculative, plain, strict=True)):
            check_assignments(f"text {i} without drafts", expected, text)
            check_assignments(f"text {i}", told, text)
            assert [entries[0][0] for entries in entries_of(told)] == told.tokens
            compare_drawn(comparison, f"text {i}", told, expected)
            step = parting(f"text {i}", told.tokens, expected.tokens)
            for line, other in zip(told.logprobs[:step], expected.logprobs[:step], strict=True):
                here, there = dict(line.entries), dict(other.entries)
                assert all(abs(here[token] - there[token]) < noise for token in here.keys() & there.keys())
    comparison.finish(SHARE_SHORT)


def test_limits_and_ends_inside_a_draft(start: Start, golden: list[GoldenCase], packaged_draft: Path) -> None:
    """A request never gives more than it was asked for, and its end token ends it wherever it stands."""
    with closing(start("--draft", str(packaged_draft), "--draft-adaptive", "off")) as daemon:
        for case in golden[:4]:
            for n in (1, 2, 3, 5, 9):
                assert generate(daemon, case.prompt_ids, "reuse=0", n).tokens == list(case.tokens[:n])
            stop = case.tokens[6]
            daemon.send(gen_line(1, 40, case.prompt_ids, f"reuse=0 stop={stop}"))
            tokens = daemon.tokens_until_end()
            assert tokens == list(case.tokens[: case.tokens.index(stop) + 1])
            assert isinstance(daemon.next_reply(), GenerateOk)


def test_acceptance_after_a_restore_is_that_of_the_undisturbed_run(
    start: Start, golden: list[GoldenCase], packaged_draft: Path, tmp_path: Path
) -> None:
    """Pages and tails hold what the drafter knows of a text; without it its drafts would be guesses."""
    prompt = [token for case in golden[:6] for token in case.prompt_ids]
    arguments = ("--draft", str(packaged_draft), "--draft-adaptive", "off", "--draft-ngram", "off")
    with closing(start(*arguments, "--disk-cache", str(tmp_path))) as daemon:
        fresh = generate(daemon, prompt, "", 64)
        reused = generate(daemon, prompt, "", 64)
        assert reused.ok.n_reused >= len(prompt) - 64
        daemon.send("park")
        daemon.next_reply()
        daemon.send("unpark")
        daemon.next_reply()
        unparked = generate(daemon, prompt, "", 64)
        assert unparked.ok.n_reused >= len(prompt) - 64
    with closing(start(*arguments, "--disk-cache", str(tmp_path))) as daemon:
        from_disk = generate(daemon, prompt, "", 64)
        assert from_disk.ok.n_reused >= len(prompt) - 64
    for told in (reused, unparked, from_disk):
        assert told.tokens == fresh.tokens
        assert drafted(told) == drafted(fresh)


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        ("dflash-narrow", "hidden size"),
        ("dflash-deep", "layer"),
        ("other-vocabulary", "vocabulary"),
    ],
)
def test_a_draft_that_does_not_fit_is_refused_with_the_reason(
    luced: Path, test_models: Path, draft: str, reason: str
) -> None:
    path = test_models / "drafts" / f"{draft}.gguf"
    check_refusal(DaemonDriver(luced, test_models / "qwen3.gguf", "--draft", str(path)), reason)


@pytest.mark.parametrize(("option", "value"), [("k", "nonsense"), ("v", "q4_k")])
def test_a_cache_type_that_is_none_is_a_bad_argument(luced: Path, test_models: Path, option: str, value: str) -> None:
    draft = str(test_models / "drafts" / "dflash-qwen3.gguf")
    name = f"--draft-cache-type-{option}"
    check_refusal(DaemonDriver(luced, test_models / "qwen3.gguf", "--draft", draft, name, value), name, status=64)


def test_a_drafter_of_another_kind_is_no_head(luced: Path, test_models: Path) -> None:
    path = test_models / "drafts" / "dflash-qwen3.gguf"
    check_refusal(DaemonDriver(luced, test_models / "qwen3.gguf", "--mtp", "--draft", str(path)), "(dflash)")


def check_refusal(daemon: DaemonDriver, reason: str, status: int = 2) -> None:
    refusal = daemon.next_reply()
    assert isinstance(refusal, Err), refusal
    assert reason in refusal.text
    assert daemon.wait() == status
    daemon.close()


def test_short_answers_are_drafted_from_earlier_ones(start: Start, golden: list[GoldenCase]) -> None:
    """Tool calls have a frame that no prompt shows: where one was made, little is verified in vain."""
    calls = [case for case in golden if case.kind == "tools"]
    daemon = start("--lanes", "1", "--draft-adaptive", "off", "--draft-max", "8")
    found: list[Speculation] = []
    comparison = Comparison(NOISE_GOLDEN)
    for turn in range(2):
        total = Speculation()
        for i, case in enumerate(calls):
            answer = daemon.generate(case.prompt_ids, len(case.tokens), "reuse=0")
            comparison.check(f"turn {turn}, {i}", answer.tokens, case.tokens, case.margins)
            assert isinstance(answer.reply, GenerateOk)
            assert answer.reply.speculation is not None
            total += answer.reply.speculation
        found.append(total)
    comparison.finish()
    first, again = found
    assert again.n_steps < first.n_steps
    assert again.n_drafted - again.n_accepted < (first.n_drafted - first.n_accepted) / 2
