"""Texts that are longer than the pool (`--kv-offload`): the same answers while they fit, answers that find what has
left the pool where they do not, one memory whatever the length, and nothing lost on the way through slots, files, park
and other lanes."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from luce.protocol import Err, ErrorCode, GenerateOk, StatusLine
from luce.supervisor.evaluating.tasks.haystack import FILLER
from luce.supervisor.text import TextModel
from tests.daemon.conftest import Start, margins_of
from tests.daemon.exactness import Told, done, drafted, generate, refused, status_of
from tests.daemon.same_tokens import NOISE_GPU, Comparison, noise_of_random
from tests.daemon.test_tiers import MOE
from tests.daemon_driver import DaemonDriver, gen_line, random_prompt

OWNERS = ("green owl", "red fox", "blue whale", "black cat")

SMALL = ("--kv-offload", "512", "--ctx", "8192", "--ubatch", "64", "--lanes", "1")
N_CELLS = 512
FAMILIES = ("tiny", "qwen3", "qwen3moe", "qwen35", "qwen35moe", "gemma4", "laguna")


class Facts:
    """Prompts with one fact each, and whether an answer tells it."""

    def __init__(self, text: TextModel, seed: int) -> None:
        self.text = text
        self.rng = random.Random(seed)

    def prompt(self, n_sentences: int, depth: float, owners: Sequence[str] = OWNERS) -> tuple[list[int], str]:
        sentences = [self.rng.choice(FILLER) for _ in range(n_sentences)]
        owner = self.rng.choice(owners)
        code = str(self.rng.randrange(10000, 99999))
        sentences.insert(int(n_sentences * depth), f"The access code of the {owner} is {code}.")
        asked = f"{' '.join(sentences)}\n\nWhat is the access code of the {owner}?"
        return self.ids(f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"), code

    def ids(self, text: str) -> list[int]:
        return self.text.tokenize(text, parse_special=True)

    def tells(self, tokens: list[int], code: str) -> bool:
        return code in self.text.detokenize(tokens).decode(errors="replace")


@pytest.fixture
def facts(tiny_model: Path) -> Facts:
    return Facts(TextModel(tiny_model), seed=5)


def model_of(family: str, tiny_model: Path, test_models: Path) -> Path:
    return tiny_model if family == "tiny" else test_models / f"{family}.gguf"


@pytest.mark.parametrize("family", FAMILIES)
def test_what_fits_is_computed_as_without(
    start: Start, family: str, tiny_model: Path, test_models: Path, gpu: bool
) -> None:
    model = model_of(family, tiny_model, test_models)
    # CUDA's sums do not come out the same in every process, so that texts part at near-ties.
    noise = NOISE_GPU if family == "tiny" else noise_of_random(family in MOE, gpu)
    comparison = Comparison(noise if gpu else 0)
    same = ("--ctx", "512", "--ubatch", "64", "--lanes", "2")
    bounded = start(*same, "--kv-offload", "1024", model=model)
    unbounded = start(*same, "--pool", "1024", model=model)
    for seed in range(3):
        prompt = random_prompt(100 + 90 * seed, seed=seed)
        told = "ignore_eos=1 logprobs=2"
        here, there = bounded.generate(prompt, 40, told), unbounded.generate(prompt, 40, told)
        comparison.check(f"{family} {seed}", here.tokens, there.tokens, margins_of(there.logprobs))
    comparison.finish(1)
    status = status_of(bounded)
    assert (status["pages_moved_out"], status["page_choices"], status["page_keys_bytes"]) == ("0", "0", "0")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_of_model_writes_on_beyond_the_pool(
    start: Start, family: str, tiny_model: Path, test_models: Path
) -> None:
    daemon = start(*SMALL, model=model_of(family, tiny_model, test_models))
    prompt = random_prompt(1200, seed=3)
    told = generate(daemon, prompt, "snap=1000:1")
    assert told.ok.n_prompt == 1200
    status = status_of(daemon)
    assert int(status["pages_resident"]) * 64 <= N_CELLS
    assert int(status["pages_moved_out"]) >= (1200 - N_CELLS) // 64
    assert (status["page_choices"], status["page_choices_cut"]) == ("1", "0")
    # From the slot, from what is known by itself, and after a park: all of it or an error, never less in silence.
    assert generate(daemon, prompt, "restore=1").ok.restored == 1000
    assert generate(daemon, prompt).ok.n_reused == 1200
    done(daemon, "park")
    done(daemon, "unpark")
    assert generate(daemon, [*prompt, 7]).ok.n_reused == 1200
    assert status_of(daemon)["pages_out"] == "0"


WIDE = ("--override-kv", "gemma4.attention.sliding_window=int:512")


def wide_window(n_pool: int | str, n_lanes: int, n_ubatch: int) -> tuple[str, ...]:
    """A pool beside windows of 512 tokens."""
    sizes = {"--kv-offload": n_pool, "--lanes": n_lanes, "--ubatch": n_ubatch, "--ctx": 4352, "--draft-max": 0}
    return (*WIDE, *(str(word) for option in sizes.items() for word in option))


@pytest.mark.parametrize(("n_lanes", "n_ubatch", "n_least"), [(1, 32, 576), (2, 64, 1088)])
def test_the_least_pool_holds_the_windows_of_all_lanes(
    start: Start, luced: Path, test_models: Path, n_lanes: int, n_ubatch: int, n_least: int
) -> None:
    model = test_models / "gemma4.gguf"
    too_small = wide_window(n_least - 64, n_lanes, n_ubatch)
    refused = subprocess.run(
        [luced, "--model", model, *too_small], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert refused.returncode != 0
    assert f"sliding window of 512 tokens and slices of --ubatch {n_ubatch} need at least {n_least}" in refused.stdout
    daemon = start(*wide_window(n_least, n_lanes, n_ubatch), model=model)
    assert dict(daemon.ready.fields)["kvflash_least"] == str(n_least)
    prompts = [random_prompt(1300, seed=lane) for lane in range(n_lanes)]
    daemon.send(*[gen_line(lane + 1, 8, prompt) for lane, prompt in enumerate(prompts)])
    for answer in daemon.collect(n_lanes).values():
        assert isinstance(answer.reply, GenerateOk), answer.reply
    assert status_of(daemon)["suspensions"] == "0"


def test_a_pool_sized_by_itself_is_no_smaller_than_the_windows(start: Start, test_models: Path) -> None:
    daemon = start(*wide_window("auto", 2, 64), model=test_models / "gemma4.gguf")
    fields = dict(daemon.ready.fields)
    assert int(fields["kvflash"]) >= int(fields["kvflash_least"]) == 1088


def recalled(daemon: DaemonDriver, facts: Facts, n: int) -> int:
    n_told = 0
    for i in range(n):
        prompt, code = facts.prompt(140, (i + 0.5) / (n + 2))
        n_told += facts.tells(daemon.generate(prompt, 24).tokens, code)
    return n_told


def test_a_fact_that_has_left_the_pool_comes_back_when_it_is_asked_for(
    start: Start, facts: Facts, tiny_model: Path, full: bool
) -> None:
    n = 8 if full else 3
    assert recalled(start(*SMALL, "--kv-offload-policy", "query"), facts, n) >= 3 * n // 4
    # Control: without looking at what is asked for, it is gone.
    lru = start(*SMALL, "--kv-offload-policy", "lru")
    assert recalled(lru, Facts(TextModel(tiny_model), seed=5), n) <= n // 4
    assert status_of(lru)["page_choices"] == "0"


def test_facts_are_found_again_after_restore_file_and_park(
    start: Start, facts: Facts, tmp_path: Path, full: bool
) -> None:
    daemon = start(*SMALL)
    n = 6 if full else 2
    told = []
    for i in range(n):
        prompt, code = facts.prompt(140, (i + 0.5) / (n + 2))
        before = facts.tells(generate(daemon, prompt, "snap=900:2", 24).tokens, code)
        done(daemon, f"SAVE 2 {tmp_path / 'slot'}")
        done(daemon, "FREE_SNAPSHOT 2")
        done(daemon, "CLEAR disk")
        done(daemon, f"LOAD 3 {tmp_path / 'slot'}")
        if i % 2:
            done(daemon, "park")
            done(daemon, "unpark")
        again = generate(daemon, prompt, "restore=3", 24)
        assert again.ok.restored == 900
        told.append((before, facts.tells(again.tokens, code)))
        done(daemon, "FREE_SNAPSHOT 3")
    assert sum(before for before, _ in told) >= 2 * n // 3
    assert sum(after for _, after in told) >= 2 * n // 3


def test_what_mattered_is_known_after_a_restart(start: Start, facts: Facts, tmp_path: Path, full: bool) -> None:
    n = 6 if full else 2
    disk = ("--disk-cache", str(tmp_path))
    prompts = [facts.prompt(140, (i + 0.5) / (n + 2)) for i in range(n)]
    before = start(*SMALL, *disk)
    assert sum(facts.tells(before.generate(prompt, 24).tokens, code) for prompt, code in prompts) >= 2 * n // 3
    assert before.close() == 0

    def told_again(daemon: DaemonDriver) -> int:
        n_told = 0
        for prompt, code in prompts:
            answer = generate(daemon, prompt, "", 24)
            assert (answer.ok.n_reused, answer.ok.tier) == (len(prompt), "disk")
            n_told += facts.tells(answer.tokens, code)
        # Nobody has asked since: it was known which pages to begin with.
        status = status_of(daemon)
        assert (status["page_choices"], status["disk_corrupt"]) == ("0", "0")
        return n_told

    # Control: who begins with the newest pages tells little of them.
    lru = start(*SMALL, *disk, "--kv-offload-policy", "lru")
    assert told_again(lru) <= n // 3
    assert lru.close() == 0
    assert told_again(start(*SMALL, *disk)) >= 2 * n // 3


def test_what_mattered_is_known_from_a_snapshots_file(start: Start, facts: Facts, tmp_path: Path, full: bool) -> None:
    n = 6 if full else 2
    prompts = [facts.prompt(140, (i + 0.5) / (n + 2)) for i in range(n)]
    before = start(*SMALL)
    for i, (prompt, _) in enumerate(prompts):
        generate(before, prompt, f"snap={len(prompt)}:2", 24)
        done(before, f"SAVE 2 {tmp_path / str(i)}")
    assert before.close() == 0
    again = start(*SMALL)
    n_told = 0
    for i, (prompt, code) in enumerate(prompts):
        done(again, f"LOAD 3 {tmp_path / str(i)}")
        answer = generate(again, prompt, "restore=3", 24)
        assert answer.ok.restored == len(prompt)
        n_told += facts.tells(answer.tokens, code)
    assert n_told >= 2 * n // 3
    assert status_of(again)["page_choices"] == "0"


def test_a_fact_of_the_first_turn_is_found_in_a_later_one(start: Start, facts: Facts) -> None:
    daemon = start(*SMALL)
    n_told = 0
    for i in range(4):
        owner, code = OWNERS[i], str(40123 + 1111 * i)
        text = facts.ids(
            f"<|im_start|>user\nThe access code of the {owner} is {code}.<|im_end|>\n<|im_start|>assistant\n"
        )
        for _ in range(5):
            text += daemon.generate(text, 16).tokens
            filler = " ".join(facts.rng.choice(FILLER) for _ in range(30))
            text += facts.ids(f"\n<|im_start|>user\n{filler}<|im_end|>\n<|im_start|>assistant\n")
        text += daemon.generate(text, 16).tokens
        question = f"\n<|im_start|>user\nWhat is the access code of the {owner}?<|im_end|>\n<|im_start|>assistant\n"
        answer = daemon.generate(text + facts.ids(question), 24)
        n_told += facts.tells(answer.tokens, code)
        assert int(status_of(daemon)["pages_resident"]) * 64 <= N_CELLS
    assert n_told >= 2


def test_lanes_share_the_pool_and_none_starves(start: Start, facts: Facts) -> None:
    daemon = start("--kv-offload", "1664", "--ctx", "4096", "--ubatch", "64", "--lanes", "4")
    prompts = {i: facts.prompt(90, 0.15 * i) for i in range(1, 6)}
    daemon.send(*(gen_line(i, 24, prompt, "") for i, (prompt, _) in prompts.items()))
    answers = daemon.collect(len(prompts))
    assert sum(facts.tells(answers[i].tokens, code) for i, (_, code) in prompts.items()) >= 3
    assert all(not isinstance(answer.reply, Err) for answer in answers.values())
    # One that is cancelled in the middle leaves nothing behind.
    daemon.send(gen_line(9, 2000, random_prompt(1500, seed=4), "ignore_eos=1"))
    assert daemon.next_token().id == 9
    daemon.send("cancel id=9")
    assert 9 in daemon.collect(1)
    status = status_of(daemon)
    assert (status["lanes_busy"], status["pages_out"]) == ("0", "0")
    assert int(status["pages_resident"]) * 64 <= 1792  # libllama has cells by 256


def test_status_says_where_a_running_texts_pages_lie(start: Start) -> None:
    daemon = start(*SMALL)
    daemon.send(gen_line(1, 400, random_prompt(1500, seed=6), "ignore_eos=1"))
    assert daemon.next_token().id == 1
    daemon.send("status")
    reply = daemon.next_reply()
    assert isinstance(reply, StatusLine)
    status = dict(reply.fields)
    lane, n_pages = status["lane_pages"].split(":")
    n_resident, n_host, n_disk = map(int, n_pages.split("/"))
    assert (lane, n_disk, n_resident + n_host) == ("0", 0, 1500 // 64)
    assert 5 <= n_resident <= N_CELLS // 64
    assert status["pages_out"] == str(n_host)
    daemon.send("cancel id=1")
    assert 1 in daemon.collect(1)
    assert status_of(daemon)["lane_pages"] == "none"


@pytest.mark.full_only
def test_drafts_of_a_text_that_outgrows_the_pool_are_as_good_as_without_a_bound(
    start: Start, facts: Facts, packaged_draft: Path
) -> None:
    """The facts lie where pages leave the pool and come back when they are asked for; and a drafter that has lost them
    does not know the code, whatever the model itself says.

    Not quite the same is seen in both runs, as the bounded one has less filler, so that a draft may end a token earlier
    or later. Measured of the six: 69 of 72 drafted tokens accepted instead of 67 of 75; with zeros for the drafter's
    rows in pages that came back 49 of 106. So a text may lose one of its 11 accepted tokens, and draft two more.
    """
    drafting = ("--draft", str(packaged_draft), "--draft-adaptive", "off", "--draft-ngram", "off")
    same = ("--ctx", "2048", "--ubatch", "64", "--lanes", "1", *drafting)
    n = 14  # up to the end of the code
    owners = [owner for owner in OWNERS if owner != "black cat"]  # that one it cannot draft in any case
    prompts = [facts.prompt(112, 0.1 + 0.04 * i, owners) for i in range(6)]
    with closing(start("--pool", "2048", *same)) as unbounded:
        expected = [generate(unbounded, prompt, "", n) for prompt, _ in prompts]
    assert sum(facts.tells(told.tokens, code) for told, (_, code) in zip(expected, prompts, strict=True)) >= 5
    bounded = start("--kv-offload", "768", *same)

    def check(name: str) -> list[Told]:
        answers = [generate(bounded, prompt, "", n) for prompt, _ in prompts]
        alike = [(here, there) for here, there in zip(answers, expected, strict=True) if here.tokens == there.tokens]
        assert len(alike) >= 5
        n_drafted, n_accepted = map(sum, zip(*(drafted(here) for here, _ in alike), strict=True))
        n_drafted_there, n_accepted_there = map(sum, zip(*(drafted(there) for _, there in alike), strict=True))
        print(f"{name}: {n_accepted} of {n_drafted} accepted, {n_accepted_there} of {n_drafted_there} without a bound")
        assert n_accepted >= n_accepted_there - len(alike)
        assert n_drafted <= n_drafted_there + 2 * len(alike)
        return answers

    check("as read")
    assert int(status_of(bounded)["pages_moved_in"]) >= len(prompts)
    again = check("from the host")
    assert [told.ok.n_reused for told in again] == [len(prompt) for prompt, _ in prompts]


def test_what_was_computed_within_a_pool_is_not_taken_for_the_whole(start: Start, tmp_path: Path) -> None:
    bounded = start(*SMALL)
    generate(bounded, random_prompt(700, seed=3), "snap=700:1")
    done(bounded, f"SAVE 1 {tmp_path / 'slot'}")
    unbounded = start("--ctx", "1024", "--lanes", "1")
    assert refused(unbounded, f"LOAD 1 {tmp_path / 'slot'}") is ErrorCode.BAD_SNAPSHOT


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--kv-offload", "0"), "need at least 512"),
        (("--kv-offload", "-64"), "need at least 512"),
        (("--kv-offload", "many"), "--kv-offload takes a whole number of tokens"),
        (("--kv-offload", "448"), "need at least 512"),
        (("--kv-offload", "520"), "576 is"),
        (("--kv-offload", "99999999999"), "--kv-offload takes a whole number of tokens"),
        (("--kv-offload", "512", "--pool", "1024"), "give one of them"),
        (("--kv-offload", "512", "--flash-attn", "off"), "needs flash attention"),
        (("--kv-offload", "512", "--host-cache", "1M"), "give --host-cache as much, or a smaller --ctx"),
        (("--kv-offload", "268435457"), "at most 268435456, or auto"),
        (("--kv-offload-interval", "32"), "--kv-offload-interval is for a pool that texts may outgrow: give"),
        (("--kv-offload-policy", "auto"), "--kv-offload-policy is for a pool"),
        (("--kv-offload-pin=0:64", "--pool", "8192"), "--kv-offload-pin is for a pool"),
        (("--kv-offload", "512", "--kv-offload-interval", "0"), "--kv-offload-interval takes a whole number from 1"),
        (("--kv-offload", "512", "--kv-offload-policy", "none"), "policy takes one of auto, query, draft, lru"),
    ],
)
def test_a_pool_that_cannot_work_is_refused_with_what_would(
    luced: Path, tiny_model: Path, arguments: tuple[str, ...], says: str
) -> None:
    ended = subprocess.run(
        [luced, "--model", tiny_model, "--ctx", "8192", "--ubatch", "64", "--lanes", "1", *arguments],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 64, ended
    assert ended.stdout.startswith("err start_failed "), ended.stdout
    assert says in ended.stdout


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("option", ["--kv-offload", "--pool"])
def test_a_pool_larger_than_the_memory_is_refused_before_it_is_taken(
    luced: Path, family: str, option: str, tiny_model: Path, test_models: Path
) -> None:
    model = model_of(family, tiny_model, test_models)
    ended = subprocess.run(
        [luced, "--model", model, "--ctx", "512", "--ubatch", "64", option, "268435456", "--cache-type-k", "f32"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 2, ended
    assert "err start_failed a pool of 268435456 tokens takes" in ended.stdout
    assert "MiB can be had: give a smaller --kv-offload, --pool or --ctx" in ended.stdout


@pytest.mark.parametrize(("n_pool", "is_said"), [("1024", True), ("960", False)])
def test_a_pool_that_nothing_has_to_leave_is_said_to_be_one(
    luced: Path, tiny_model: Path, n_pool: str, is_said: bool
) -> None:
    ended = subprocess.run(
        [luced, "--model", tiny_model, "--ctx", "512", "--lanes", "2", "--ubatch", "64", "--kv-offload", n_pool],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended
    assert ("nothing has to leave the pool" in ended.stderr) is is_said
