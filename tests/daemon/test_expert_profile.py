"""The profile of a mixture's experts, on any device: counted, kept, and whole whatever ends the daemon."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from luce.protocol import GenerateOk
from tests.daemon_driver import DaemonDriver, DaemonEnded, random_prompt

WRITES = "ignore_eos=1 temp=0"


def started(luced: Path, test_models: Path, *arguments: str) -> DaemonDriver:
    shape = ("--ctx", "512", "--lanes", "1", "--threads", "1", "--no-warmup")
    return DaemonDriver(luced, test_models / "qwen3moe.gguf", *shape, *arguments)


def test_counting_changes_no_answer_and_goes_on_after_a_restart(luced: Path, test_models: Path, tmp_path: Path) -> None:
    profile = tmp_path / "mixture.experts"
    with started(luced, test_models) as daemon:
        expected = daemon.generate(random_prompt(40), 24, WRITES).tokens
    sizes, contents = set(), []
    for _ in range(2):
        with started(luced, test_models, "--expert-profile", str(profile)) as daemon:
            answer = daemon.generate(random_prompt(40), 24, WRITES)
            assert answer.tokens == expected
            assert isinstance(answer.reply, GenerateOk)
            assert answer.reply.experts is None, "none lies apart from the others"
        contents.append(profile.read_bytes())
        sizes.add(len(contents[-1]))
    assert contents[0] != contents[1], "the second run counts on"
    assert len(sizes) == 1
    with started(luced, test_models, "--expert-profile", str(profile), "--experts-fixed") as daemon:
        daemon.generate(random_prompt(40), 24, WRITES)
    assert profile.read_bytes() == contents[1], "read only"


def test_a_profile_survives_a_kill_while_it_is_written(
    luced: Path, test_models: Path, tmp_path: Path, full: bool
) -> None:
    profile = tmp_path / "mixture.experts"
    chance = random.Random(5)
    n_written = 0
    for _ in range(60 if full else 12):
        before = profile.read_bytes() if profile.exists() else b""
        daemon = started(luced, test_models, "--expert-profile", str(profile))
        daemon.ready = daemon.expect_ready()
        daemon.generate(random_prompt(20), 8, WRITES)
        daemon.close_input()  # the end: it writes what it has counted
        killed_at = time.monotonic() + chance.uniform(0, 0.004)
        while time.monotonic() < killed_at:
            pass
        daemon.child.send_signal(signal.SIGKILL)
        daemon.wait()
        daemon.close()
        n_written += profile.exists() and profile.read_bytes() != before
    with started(luced, test_models, "--expert-profile", str(profile)) as daemon:  # refused if it were damaged
        daemon.generate(random_prompt(20), 8, WRITES)
    assert profile.stat().st_size > 0
    if full:
        assert 0 < n_written < 60, "some kills come before the file, some after it"


def test_a_damaged_profile_is_refused(luced: Path, test_models: Path, tmp_path: Path) -> None:
    profile = tmp_path / "mixture.experts"
    with started(luced, test_models, "--expert-profile", str(profile)) as daemon:
        daemon.generate(random_prompt(20), 8, WRITES)
    whole = profile.read_bytes()
    for damaged in (whole[:-1], whole + b"\0", whole[:100] + bytes([whole[100] ^ 1]) + whole[101:], b""):
        profile.write_bytes(damaged)
        daemon = started(luced, test_models, "--expert-profile", str(profile))
        with pytest.raises((DaemonEnded, AssertionError)):
            daemon.expect_ready()
        assert daemon.wait() != 0
        daemon.close()
        assert profile.read_bytes() == damaged
