"""Formats by layer and outside the device, as who starts luced sees them. What comes back from where is test_tiers.py;
how many bits are lost, native/tests/llama/packed_kv_device_test.cpp."""

from __future__ import annotations

from pathlib import Path

import pytest

from luce.protocol import Err, ErrorCode, SlotSaved
from tests.daemon.conftest import Start
from tests.daemon.exactness import done, generate, refused, status_of
from tests.daemon_driver import DaemonDriver, random_prompt

N_POOL = 512
PROMPT = random_prompt(260, seed=1)
FILLING = random_prompt(N_POOL - 40, seed=2)
DRAFTER = Path(__file__).resolve().parents[2] / "models" / "luce-tiny-dflash-Q8_0.gguf"


def page_bytes(daemon: DaemonDriver) -> int:
    return int(dict(daemon.ready.fields)["page_bytes"])


def send_out(daemon: DaemonDriver) -> None:
    generate(daemon, FILLING)


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (["--cache-type-k", "q8_0,3"], "'3' is unknown"),
        (["--cache-type-v", "q8_0,40:f16"], "--cache-type-v: layer 40 is none of this model's, 0 to 11"),
        (["--cache-type-k", "captured:f16"], "needs a --draft"),
        (["--flash-attn", "off", "--cache-type-v", "f16,7:q8_0"], "needs flash attention"),
        (["--host-cache-type", "q3"], "choose one of tq3"),
        (["--host-cache-type", "tq3", "--kv-offload", "4096"], "does not go with --kv-offload"),
        (["--host-cache-type", "tq3", "--kv-offload", "auto"], "does not go with --kv-offload"),
    ],
)
def test_a_rule_that_cannot_be_kept_is_a_bad_argument(
    luced: Path, tiny_model: Path, rules: list[str], reason: str
) -> None:
    daemon = DaemonDriver(luced, tiny_model, *rules)
    refusal = daemon.next_reply()
    assert isinstance(refusal, Err)
    assert reason in refusal.text
    assert daemon.wait() == 64
    daemon.close()


def test_a_drafters_layers_can_be_kept_exact(start: Start) -> None:
    arguments = ["--ctx", str(N_POOL), "--draft", str(DRAFTER)]
    coarse = start(*arguments, "--cache-type-k", "q4_0")
    kept = start(*arguments, "--cache-type-k", "q4_0,captured:q8_0")
    keys = dict(kept.ready.fields)["kv"].split("/")[0]
    assert keys != "q4_0"
    assert keys.count("q8_0") == 1
    assert dict(coarse.ready.fields)["kv"] == "q4_0/q8_0"
    assert len(generate(kept, PROMPT).tokens) > 0


@pytest.mark.parametrize("has_draft", [False, True])
def test_three_bits_outside_take_a_third_and_come_back_from_everywhere(
    start: Start, tmp_path: Path, has_draft: bool
) -> None:
    arguments = ["--ctx", str(N_POOL), "--pool", str(N_POOL), "--lanes", "1", "--host-cache", "64M"]
    arguments += ["--disk-cache", str(tmp_path / "cache"), "--cache-type-k", "q8_0", "--cache-type-v", "q8_0"]
    if has_draft:
        arguments += ["--draft", str(DRAFTER)]
    plain = start(*arguments)
    expected = generate(plain, PROMPT).tokens
    assert plain.close() == 0

    packed = [*arguments, "--host-cache-type", "tq3"]
    daemon = start(*packed)
    fields = dict(daemon.ready.fields)
    assert (fields["kv"], fields["kv_outside"]) == ("q8_0/q8_0", "tq3")
    assert fields["identity"] != dict(plain.ready.fields)["identity"]
    if has_draft:
        assert page_bytes(daemon) < page_bytes(plain)  # a draft's rows stay as they are
    else:
        assert page_bytes(daemon) * 2.5 < page_bytes(plain)
    assert generate(daemon, PROMPT).tokens == expected  # nothing has left the device yet
    assert generate(daemon, PROMPT).ok.tier == "resident"
    send_out(daemon)
    back = generate(daemon, PROMPT, f"snap={len(PROMPT)}:1")
    assert back.ok.tier == "host"
    assert back.ok.n_reused == len(PROMPT)
    assert len(back.tokens) == len(expected)
    assert len(back.snapshots) == 1
    file = done(daemon, f"SAVE 1 {tmp_path / 'text.snap'}")
    assert isinstance(file, SlotSaved)
    done(daemon, "park")
    done(daemon, "unpark")
    assert generate(daemon, PROMPT).ok.n_reused == len(PROMPT)
    assert status_of(daemon)["disk_corrupt"] == "0"
    assert daemon.close() == 0

    daemon = start(*packed)
    assert generate(daemon, PROMPT).ok.tier == "disk"
    done(daemon, f"LOAD 0 {tmp_path / 'text.snap'}")
    assert daemon.close() == 0

    plain = start(*arguments)
    assert refused(plain, f"LOAD 0 {tmp_path / 'text.snap'}") is ErrorCode.BAD_SNAPSHOT
    assert generate(plain, PROMPT).tokens == expected  # its own files, not the packed ones
    assert plain.close() == 0


def test_a_format_that_saves_nothing_is_not_used(start: Start) -> None:
    daemon = start(
        "--ctx", str(N_POOL), "--cache-type-k", "q4_0", "--cache-type-v", "q4_0", "--host-cache-type", "q8_0"
    )
    plain = start("--ctx", str(N_POOL), "--cache-type-k", "q4_0", "--cache-type-v", "q4_0")
    assert page_bytes(daemon) == page_bytes(plain)
    assert "kv_outside" not in dict(daemon.ready.fields)
    assert dict(daemon.ready.fields)["identity"] == dict(plain.ready.fields)["identity"]
