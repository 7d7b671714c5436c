"""What a reply says of reuse is true: how much, from where, and why not more."""

from __future__ import annotations

from pathlib import Path

import pytest

from luce.protocol import Err, ErrorCode, InlineSnapshot, InlineSnapshotFailed, TextsLine
from luce.supervisor.scheduling.remembered_texts import parse_listing
from tests.daemon.conftest import Start
from tests.daemon.exactness import Checked, done, generate, status_of
from tests.daemon.same_tokens import NOISE_RANDOM
from tests.daemon_driver import random_prompt

TEXT = random_prompt(200, seed=5)
OTHERS = [random_prompt(220, seed=50 + i) for i in range(4)]
HYBRID, PURE = "qwen35", "qwen3"


@pytest.mark.parametrize("family", [PURE, HYBRID])
def test_each_reason_for_a_miss(start: Start, test_models: Path, tmp_path: Path, family: str) -> None:
    model = test_models / f"{family}.gguf"
    arguments = ["--ctx", "256", "--pool", "256", "--lanes", "1", "--disk-cache", str(tmp_path)]
    daemon = start(*arguments, "--host-cache", "0", "--disk-budget", "0", model=model)

    def said(prompt: list[int], extra: str = "") -> tuple[int, str, str]:
        ok = generate(daemon, prompt, extra, 1).ok
        return ok.n_reused, ok.tier, ok.miss

    assert said(TEXT) == (0, "none", "none")
    assert said(TEXT, "reuse=0") == (0, "none", "off")
    departing = [*TEXT[:150], *random_prompt(30, seed=6)]
    if family == PURE:
        assert said(departing) == (150, "resident", "differs_at:150")
    else:
        assert said(departing) == (0, "none", "no_tail")
    for other in OTHERS:
        said(other)
    assert said(TEXT) == (0, "none", "evicted")
    daemon.close()

    daemon = start(*arguments, model=model)
    assert said(TEXT) == (0, "none", "none")
    assert said(TEXT) == (200, "resident", "none")
    daemon.close()
    # Other cache types make other texts; what is on disk is of no use to them.
    daemon = start(*arguments, "--cache-type-k", "bf16", model=model)
    assert said(TEXT) == (0, "none", "identity")
    daemon.close()
    daemon = start(*arguments, "--prefix-cache", "off", model=model)
    assert said(TEXT) == (0, "none", "off")
    assert said(TEXT, "reuse=1")[:2] in ((200, "disk"), (200, "resident"))


@pytest.mark.parametrize("draft", ["dflash-qwen3", "simple-qwen3"])
def test_drafts_that_carry_nothing_over_leave_a_text_to_be_taken_up_anywhere(
    start: Start, test_models: Path, draft: str
) -> None:
    path = test_models / "drafts" / f"{draft}.gguf"
    drafting = ["--draft", str(path), "--draft-adaptive", "off", "--draft-ngram", "off"]
    arguments = ["--ctx", "512", "--lanes", "1", *drafting]
    daemon = start(*arguments, model=test_models / f"{PURE}.gguf")
    generate(daemon, TEXT, "", 1)
    departing = [*TEXT[:150], *random_prompt(30, seed=6)]
    reused = generate(daemon, departing, "", 40).ok
    assert (reused.n_reused, reused.tier, reused.miss) == (150, "resident", "differs_at:150")
    anew = generate(daemon, departing, "reuse=0", 40).ok
    assert reused.speculation is not None
    assert anew.speculation is not None
    assert reused.speculation.n_drafted > 0
    assert abs(reused.speculation.n_accepted - anew.speculation.n_accepted) <= 2  # a near tie may part them


def test_a_mark_leaves_a_tail_to_go_on_from(start: Start, test_models: Path) -> None:
    daemon = start("--ctx", "512", "--lanes", "1", model=test_models / f"{HYBRID}.gguf")
    generate(daemon, TEXT, "marks=70,150", 4)
    ok = generate(daemon, [*TEXT[:160], 11, 12, 13], "", 1).ok
    assert (ok.n_reused, ok.miss) == (150, "no_tail")
    ok = generate(daemon, [*TEXT[:150], 11, 12, 13], "", 1).ok
    assert (ok.n_reused, ok.miss) == (150, "differs_at:150")


def test_snapshots_that_do_not_fit_fail_alone(start: Start, test_models: Path) -> None:
    daemon = start("--ctx", "512", "--host-cache", "0", "--lanes", "1", model=test_models / f"{HYBRID}.gguf")
    told = generate(daemon, TEXT, "snap=50:1,200:2", 4)
    assert len(told.tokens) == 4
    assert told.ok.n_generated == 4
    assert told.snapshots == [InlineSnapshotFailed(slot, ErrorCode.NO_ROOM, id=1) for slot in (1, 2)]
    assert status_of(daemon)["slots_used"] == "0"


def test_a_slot_never_loses_what_it_holds(start: Start, test_models: Path) -> None:
    """A host that has room for little more than one slot: others are refused, and that one stays."""
    daemon = start("--ctx", "256", "--pool", "256", "--lanes", "1", model=test_models / f"{PURE}.gguf")
    page_bytes = int(dict(daemon.ready.fields)["page_bytes"])
    daemon.close()
    budget = 5 * page_bytes + 40_000
    arguments = ["--ctx", "256", "--pool", "256", "--lanes", "1", "--host-cache", str(budget)]
    daemon = start(*arguments, model=test_models / f"{PURE}.gguf")
    assert [type(s) for s in generate(daemon, TEXT, "snap=200:0").snapshots] == [InlineSnapshot]
    checked = Checked(NOISE_RANDOM)
    checked.learn(daemon, [*TEXT, 7])
    n_refused = 0
    for i, other in enumerate(OTHERS * 3):
        told = generate(daemon, other, f"snap=190:{i + 1}")
        n_refused += isinstance(told.snapshots[0], InlineSnapshotFailed)
        assert int(status_of(daemon)["pinned_bytes"]) <= budget
    assert n_refused > 0
    assert checked.generate("restored", daemon, [*TEXT, 7], "restore=0").restored == 200


def test_three_hundred_snapshots_of_one_conversation_cost_its_pages_and_their_tails(
    start: Start, test_models: Path
) -> None:
    daemon = start("--ctx", "1024", "--slots", "300", "--lanes", "1", model=test_models / f"{PURE}.gguf")
    page_bytes = int(dict(daemon.ready.fields)["page_bytes"])
    text = random_prompt(300, seed=9)
    for slot in range(300):
        text += [20 + slot % 200, 30]
        told = generate(daemon, text, f"snap={len(text)}:{slot}", 1)
        assert [type(s) for s in told.snapshots] == [InlineSnapshot]
    fields = status_of(daemon)
    assert fields["slots_used"] == "300"
    n_vocab = int(dict(daemon.ready.fields)["vocab"])
    pages = len(text) // 64 * page_bytes
    tails = 300 * (page_bytes + 4 * n_vocab)
    assert int(fields["pinned_bytes"]) <= pages + tails
    assert generate(daemon, [*text[:500], 7, 7], "restore=99").ok.restored == 500
    daemon.send(*(f"FREE_SNAPSHOT {slot}" for slot in range(300)))
    for _ in range(300):
        assert not isinstance(daemon.next_reply(), Err)
    done(daemon, "CLEAR")
    fields = status_of(daemon)
    assert [fields[key] for key in ("pinned_bytes", "host_bytes", "cells_used")] == ["0", "0", "0"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("gen id=1 n=1 prompt=1,2 restore=999", ErrorCode.BAD_SLOT),
        ("gen id=1 n=1 prompt=1,2 restore=3", ErrorCode.EMPTY_SLOT),
        ("gen id=1 n=1 prompt=1,2 snap=1:256", ErrorCode.BAD_SLOT),
        ("gen id=1 n=1 prompt=1,2 snap=3:1", ErrorCode.BAD_ARGS),
        ("gen id=1 n=1 prompt=1,2 restore=0", ErrorCode.PREFIX_MISMATCH),
        ("gen id=1 n=1 prompt=1,2 restore=0 chain=256", ErrorCode.BAD_SLOT),
        ("gen id=1 n=1 prompt=1,2 restore=0 chain=9", ErrorCode.EMPTY_SLOT),
        ("gen id=1 n=1 prompt=1,2 restore=0 restore_at=201", ErrorCode.BAD_ARGS),
        ("snapshot id=1 slot=256", ErrorCode.UNKNOWN_ID),
        ("snapshot id=1 slot=256 of=1", ErrorCode.BAD_SLOT),
        ("snapshot id=1 slot=2 of=77", ErrorCode.UNKNOWN_ID),
        ("thin id=1 slot=2 from=10 to=4000 of=1", ErrorCode.BAD_ARGS),
        ("free id=1 slot=256", ErrorCode.BAD_SLOT),
        ("free id=1 slot=7", ErrorCode.EMPTY_SLOT),
        ("save id=1 slot=7 path=/tmp/x", ErrorCode.EMPTY_SLOT),
        ("save id=1 slot=0 path=/nonexistent/x", ErrorCode.IO_ERROR),
        ("load id=1 slot=0 path=/nonexistent/x", ErrorCode.NO_SUCH_FILE),
        ("load id=1 slot=256 path=/nonexistent/x", ErrorCode.BAD_SLOT),
        ("park id=1 what=draft", ErrorCode.NO_DRAFT),
    ],
)
def test_refusals(start: Start, test_models: Path, line: str, code: ErrorCode) -> None:
    daemon = start("--ctx", "512", model=test_models / f"{PURE}.gguf")
    generate(daemon, TEXT, "snap=200:0", 1)
    daemon.send(line)
    reply = daemon.next_reply()
    assert isinstance(reply, Err), reply
    assert reply.code is code, reply
    if line.startswith("gen"):
        assert daemon.tokens_until_end() == []
    assert generate(daemon, [*TEXT, 9], "restore=0", 1).ok.restored == 200


@pytest.mark.parametrize("family", [PURE, HYBRID])
def test_texts_with_other_salts_are_other_texts(start: Start, test_models: Path, tmp_path: Path, family: str) -> None:
    """Neither found, nor spared being read or kept, in the pool and on disk; what is common is found as far as that."""
    model = test_models / f"{family}.gguf"
    arguments = ["--ctx", "256", "--pool", "2048", "--lanes", "2", "--disk-cache", str(tmp_path)]
    daemon = start(*arguments, model=model)

    def said(prompt: list[int], extra: str) -> tuple[int, str, str]:
        ok = generate(daemon, prompt, extra, 1).ok
        return ok.n_reused, ok.tier, ok.miss

    def n_kept() -> int:
        """Tokens of whole pages, wherever these lie."""
        listed = done(daemon, "texts id=1")
        assert isinstance(listed, TextsLine)
        return sum(run.end - run.begin for run in parse_listing(dict(listed.fields)).runs)

    plain = generate(daemon, TEXT, "marks=150", 8).tokens
    n_plain = n_kept()
    assert n_plain > 150
    for n_texts, salt in enumerate((0, 1, 2**64 - 1), 2):
        told = generate(daemon, TEXT, f"salt={salt} marks=150", 8)
        assert (told.ok.n_reused, told.ok.tier, told.ok.miss) == (0, "none", "differs_at:0")
        assert told.tokens == plain
        assert n_kept() == n_texts * n_plain
        again = generate(daemon, [*TEXT, *told.tokens, 11], f"salt={salt}", 1)
        assert again.ok.n_reused >= len(TEXT)
    assert said([*TEXT, 11], "")[0] >= len(TEXT)
    assert said([*TEXT[:180], 11], "salt=3 salt_from=150") == (150, "resident", "differs_at:150")
    assert said([*TEXT[:180], 12], "salt=4 salt_from=150")[0] == 150
    daemon.close()
    daemon = start(*arguments, model=model)
    assert said(TEXT, "salt=3")[:2] == (0, "none")
    assert said([*TEXT, 11], "salt=1")[:2] in ((len(TEXT), "disk"), (len(TEXT), "resident"))
