"""Pins (`--kv-offload-pin`, `pin=`): a fact that the policy would have let go is told, whichever way the text came into
the pool, and what cannot be pinned is refused with what could."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from luce.protocol import Err, ErrorCode
from luce.supervisor.evaluating.tasks.haystack import FILLER
from luce.supervisor.text import TextModel
from tests.daemon.conftest import Start
from tests.daemon.exactness import done, generate, status_of
from tests.daemon.test_residency import FAMILIES, OWNERS, Facts, model_of
from tests.daemon_driver import DaemonDriver, gen_line, random_prompt

LRU = ("--kv-offload", "1024", "--ctx", "8192", "--ubatch", "64", "--lanes", "1", "--kv-offload-policy", "lru")
"""Without a pin nothing but the newest pages stays."""
NARROW = ("--kv-offload", "768", *LRU[2:])
"""The same, with room for FACT_WITHIN: the facts' texts are twice as long."""
FACT_WITHIN = (256, 512)


@pytest.fixture
def facts(tiny_model: Path) -> Facts:
    return Facts(TextModel(tiny_model), seed=5)


def early_fact(facts: Facts, i: int) -> tuple[list[int], str]:
    """A prompt of some 1400 tokens that tells a fact within FACT_WITHIN, and asks for it at its end."""
    owner, code = OWNERS[i % len(OWNERS)], str(40123 + 1111 * i)

    def filler(n_tokens: int) -> list[int]:
        ids: list[int] = []
        while len(ids) < n_tokens:
            ids += facts.ids(" " + facts.rng.choice(FILLER))
        return ids

    start = facts.ids("<|im_start|>user\n") + filler(290)
    told = [*start, *facts.ids(f" The access code of the {owner} is {code}.")]
    assert FACT_WITHIN[0] <= len(start) < len(told) <= FACT_WITHIN[1]
    asked = facts.ids(f"\n\nWhat is the access code of the {owner}?<|im_end|>\n<|im_start|>assistant\n")
    return told + filler(1050) + asked, code


def n_told(daemon: DaemonDriver, facts: Facts, extra: str, n: int) -> int:
    return sum(
        facts.tells(generate(daemon, prompt, extra, 24).tokens, code)
        for prompt, code in (early_fact(facts, i) for i in range(n))
    )


def test_a_pinned_fact_is_told_and_one_that_is_not_pinned_is_gone(start: Start, facts: Facts, full: bool) -> None:
    daemon = start(*NARROW)
    n = 6 if full else 2
    assert n_told(daemon, facts, "", n) <= 1
    assert n_told(daemon, facts, "pin=256:512", n) >= n - 1
    # A single position holds its page; pins elsewhere are of no use to it.
    assert n_told(daemon, facts, "pin=600:700", n) <= 1


def test_pins_of_every_text_are_the_daemons(start: Start, facts: Facts, full: bool) -> None:
    n = 6 if full else 2
    daemon = start(*NARROW, "--kv-offload-pin", "300:400,256:512")
    assert n_told(daemon, facts, "", n) >= n - 1
    # A text that ends before them, or within them, is one like any other.
    for n_prompt in (10, 300):
        assert generate(daemon, random_prompt(n_prompt)).ok.n_prompt == n_prompt


def test_a_pinned_page_that_is_out_comes_back_when_its_text_begins_again(
    start: Start, facts: Facts, tmp_path: Path, full: bool
) -> None:
    daemon = start(*NARROW)
    n = 4 if full else 2
    n_before, n_slot, n_file, n_parked = 0, 0, 0, 0
    for i in range(n):
        prompt, code = early_fact(facts, i)
        short = prompt[:1024]
        generate(daemon, short, "snap=1024:1", 1)
        n_before += facts.tells(generate(daemon, prompt, "restore=1", 24).tokens, code)
        n_slot += facts.tells(generate(daemon, prompt, "restore=1 pin=256:512", 24).tokens, code)
        done(daemon, f"SAVE 1 {tmp_path / 'slot'}")
        done(daemon, "CLEAR disk")
        done(daemon, f"LOAD 2 {tmp_path / 'slot'}")
        n_file += facts.tells(generate(daemon, prompt, "restore=2 pin=256:512", 24).tokens, code)
        done(daemon, "park")
        done(daemon, "unpark")
        n_parked += facts.tells(generate(daemon, prompt, "restore=2 pin=256:512", 24).tokens, code)
        status_of(daemon)  # checks that no lane misses a pinned page
    assert n_before <= 1
    assert min(n_slot, n_file, n_parked) >= n - 1


@pytest.mark.full_only
def test_lanes_with_pins_wait_for_room_and_all_are_served(start: Start, facts: Facts) -> None:
    shape = ("--ctx", "4096", "--ubatch", "64", "--lanes", "4")
    daemon = start("--kv-offload", "1664", *shape, "--kv-offload-policy", "lru")
    prompts = {i: early_fact(facts, i) for i in range(1, 6)}
    lines = [gen_line(i, 24, prompt, f"pin=256:512 priority={i % 2}") for i, (prompt, _) in prompts.items()]
    daemon.send(*lines)
    answers = daemon.collect(len(prompts))
    assert all(not isinstance(answer.reply, Err) for answer in answers.values())
    assert sum(facts.tells(answers[i].tokens, code) for i, (_, code) in prompts.items()) >= 4
    status = status_of(daemon)
    assert (status["lanes_busy"], status["pages_out"]) == ("0", "0")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_of_model_takes_pins(start: Start, family: str, tiny_model: Path, test_models: Path) -> None:
    daemon = start(*LRU, model=model_of(family, tiny_model, test_models))
    told = generate(daemon, random_prompt(1500, seed=3), "pin=0:1,500:640,1400:1500 snap=1100:1", 8)
    assert told.ok.n_prompt == 1500
    assert generate(daemon, random_prompt(1500, seed=3), "pin=128:400 restore=1", 8).ok.restored == 1100
    assert int(status_of(daemon)["pages_moved_out"]) > 0


def refusal(daemon: DaemonDriver, n_prompt: int, pin: str) -> Err:
    daemon.send(gen_line(1, 4, random_prompt(n_prompt), f"pin={pin}"))
    reply = daemon.collect(1)[1].reply
    assert isinstance(reply, Err), reply
    assert reply.code is ErrorCode.BAD_ARGS
    return reply


def test_what_cannot_be_pinned_is_refused_with_what_could(start: Start) -> None:
    daemon = start("--kv-offload", "1024", "--ctx", "8192", "--ubatch", "64", "--lanes", "1")
    assert "pin=90:101 is not within the prompt, which has the positions 0:100" in refusal(daemon, 100, "90:101").text
    assert "pin=200:300 is not within" in refusal(daemon, 100, "0:5,200:300").text
    too_many = refusal(daemon, 2000, "0:64,100:900").text
    assert "holds 896 tokens in whole pages of 64; the pool of 1024 has room for 576 tokens" in too_many
    # As much as it says goes, and so does the first page beside it.
    for pin in ("0:640", "128:704", "64:65,1024:1536"):
        assert generate(daemon, random_prompt(2000), f"pin={pin}", 100).ok.n_generated == 100
    assert "576" in refusal(daemon, 2000, "64:704").text
    both = start(*LRU, "--kv-offload-pin", "64:320")
    said = refusal(both, 2000, "600:1000").text
    assert "holds with --kv-offload-pin 704 tokens" in said
    assert generate(both, random_prompt(2000), "pin=64:320,640:900", 4).ok.n_prompt == 2000


def test_without_a_bounded_pool_all_is_resident_and_pins_change_nothing(start: Start) -> None:
    daemon = start("--ctx", "512")
    prompt = random_prompt(200)
    assert generate(daemon, prompt, "pin=0:200").tokens == generate(daemon, prompt, "reuse=0").tokens
    assert "not within the prompt" in refusal(daemon, 100, "90:101").text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--kv-offload-pin", "5"), "--kv-offload-pin takes positions as begin:end"),
        (("--kv-offload-pin", "9:5"), "each prefix before it ends"),
        (("--kv-offload-pin", "-1:5"), "takes positions"),
        (("--kv-offload-pin", "a:b"), "takes positions"),
        (("--kv-offload-pin", "1:2,"), "takes positions"),
        (("--kv-offload-pin", ""), "takes positions"),
        (("--kv-offload-pin", "0:1", "--ctx", "0"), "--ctx takes"),
        (("--kv-offload-pin", "8000:8193"), "--kv-offload-pin 8000:8193 goes beyond any text: --ctx is 8192"),
        (("--kv-offload-pin", "0:2147483647"), "goes beyond any text"),
        (
            ("--kv-offload-pin", "0:1000"),
            "holds 960 tokens in whole pages, in each of 1 lanes: --kv-offload 1024 has room for 512; for these it",
        ),
        (("--kv-offload", "1536", "--kv-offload-pin", "0:1000", "--lanes", "2"), "in each of 2 lanes"),
    ],
)
def test_pins_of_every_text_that_cannot_be_are_refused(
    luced: Path, tiny_model: Path, arguments: tuple[str, ...], says: str
) -> None:
    ended = subprocess.run(
        [luced, "--model", tiny_model, *LRU, *arguments],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 64, ended
    assert ended.stdout.startswith("err start_failed "), ended.stdout
    assert says in ended.stdout


def test_the_size_that_a_refusal_names_is_enough_and_auto_finds_it(start: Start) -> None:
    pins = ("--kv-offload-pin", "0:1000")
    at_least = start(*LRU, *pins, "--kv-offload", "1472")
    assert generate(at_least, random_prompt(2000), "", 100).ok.n_generated == 100
    automatic = start(*LRU, *pins, "--kv-offload", "auto")
    assert automatic.ready is not None
    assert int(dict(automatic.ready.fields)["pool"]) >= 1472
