"""The disk cache of a real daemon: whatever happens to the daemon, to its files or to the disk, answers stay right."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import time
from pathlib import Path

from luce.protocol import Err, ErrorCode
from tests.daemon.conftest import Start
from tests.daemon.exactness import Checked, done, generate, status_of
from tests.daemon.same_tokens import NOISE_RANDOM
from tests.daemon_driver import DEADLINE_S, DaemonDriver, gen_line, random_prompt

FAMILY = "qwen35"  # pages and tails
TRUNK = random_prompt(130, seed=1)
PROMPTS = [TRUNK + random_prompt(30 + 20 * i, seed=10 + i) for i in range(4)]
ARGUMENTS = ["--ctx", "256", "--pool", "256", "--lanes", "2", "--host-cache", "64M"]


def cache_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in (".page", ".tail"))


def make_references(start: Start, model: Path) -> Checked:
    checked = Checked(NOISE_RANDOM)
    daemon = start(*ARGUMENTS, model=model)
    checked.learn(daemon, *PROMPTS)
    assert daemon.close() == 0
    return checked


def test_kill_minus_nine_at_any_moment(start: Start, test_models: Path, tmp_path: Path, full: bool) -> None:
    model = test_models / f"{FAMILY}.gguf"
    checked = make_references(start, model)
    rng = random.Random(3)
    n_from_disk = 0
    for round_number in range(300 if full else 7):
        daemon = start(*ARGUMENTS, "--disk-cache", str(tmp_path), model=model)
        assert status_of(daemon)["disk_corrupt"] == "0"
        for prompt in rng.sample(PROMPTS, rng.randrange(1, 4)):
            n_from_disk += checked.generate(f"round {round_number}", daemon, prompt).tier == "disk"
        if rng.random() < 0.3:
            done(daemon, "CLEAR disk")
        # What is written behind the answers is under way; so may be an answer.
        daemon.send(gen_line(5, rng.randrange(1, 40), rng.choice(PROMPTS)))
        for _ in range(rng.randrange(3)):
            daemon.next_token()
        os.kill(daemon.child.pid, signal.SIGKILL)
        daemon.wait()
    for _ in range(2):  # the first one ends in order: all it was asked for is on disk then
        daemon = start(*ARGUMENTS, "--disk-cache", str(tmp_path), model=model)
        n_from_disk += checked.generate("in the end", daemon, PROMPTS[0]).tier == "disk"
        assert daemon.close() == 0
    assert n_from_disk > 0
    checked.finish()


def damage(rng: random.Random, path: Path, other: Path) -> None:
    data = path.read_bytes()
    if not data:  # cut to nothing in an earlier round, and not asked for since
        return
    kind = rng.randrange(6)
    at = rng.randrange(len(data))
    if kind == 0:
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :])
    elif kind == 1:
        path.write_bytes(data[:at])
    elif kind == 2:
        path.write_bytes(data + rng.randbytes(rng.randrange(1, 1 << 16)))
    elif kind == 3:
        path.write_bytes(rng.randbytes(len(data)))
    elif kind == 4 and other != path:
        shutil.copy(other, path)
    else:
        path.write_bytes(data[:at] + bytes(len(data) - at))


def test_damaged_files_are_skipped_counted_and_removed(
    start: Start, test_models: Path, tmp_path: Path, full: bool
) -> None:
    model = test_models / f"{FAMILY}.gguf"
    checked = make_references(start, model)
    rng = random.Random(4)
    folder = tmp_path / "cache"
    n_corrupt = 0
    for round_number in range(200 if full else 8):
        daemon = start(*ARGUMENTS, "--disk-cache", str(folder), model=model)
        for prompt in PROMPTS:
            checked.generate(f"round {round_number}", daemon, prompt)
        n_corrupt += int(status_of(daemon)["disk_corrupt"])
        assert daemon.close() == 0
        files = cache_files(folder)
        assert len(files) >= len(PROMPTS)
        before = {path: path.read_bytes() for path in files}
        for path in rng.sample(files, rng.randrange(1, len(files) + 1)):
            damage(rng, path, rng.choice(files))
        if all(path.read_bytes() == data for path, data in before.items()):
            continue
        for stranger in ("x.page", "0" * 32 + ".page", "notes.txt"):
            (files[0].parent / stranger).write_bytes(b"stranger")
    assert n_corrupt > 0
    checked.finish()


def test_a_full_disk_stops_writing_and_nothing_else(start: Start, test_models: Path, tmp_path: Path) -> None:
    """The process may write no file over 1 KiB: what a full disk does, for every page and tail."""
    model = test_models / f"{FAMILY}.gguf"
    checked = make_references(start, model)
    daemon = start(*ARGUMENTS, "--disk-cache", str(tmp_path), model=model)
    # SIGXFSZ would end the process; luced must not mind it.
    resource.prlimit(daemon.child.pid, resource.RLIMIT_FSIZE, (1024, 1024))
    for _ in range(2):
        for prompt in PROMPTS:
            checked.generate("full disk", daemon, prompt)
    until_s = time.monotonic() + DEADLINE_S
    while (fields := status_of(daemon))["disk_trouble"] == "none":  # what is written is written behind the answers
        assert time.monotonic() < until_s, fields
    assert fields["disk_files"] == "0"
    generate(daemon, PROMPTS[0], "snap=100:0")
    daemon.send(f"SAVE 0 {tmp_path / 'slot.snap'}")
    reply = daemon.next_reply()
    assert isinstance(reply, Err)
    assert reply.code is ErrorCode.IO_ERROR
    assert not (tmp_path / "slot.snap").exists()
    assert daemon.close() == 0


def test_two_daemons_share_a_folder(start: Start, test_models: Path, tmp_path: Path) -> None:
    model = test_models / f"{FAMILY}.gguf"
    checked = make_references(start, model)
    rng = random.Random(5)
    page_bytes = 200_000
    both = [
        start(*ARGUMENTS, "--disk-cache", str(tmp_path), "--disk-budget", str(budget), model=model)
        for budget in (3 * page_bytes, 30 * page_bytes)
    ]
    for i in range(12):
        daemon: DaemonDriver = rng.choice(both)
        checked.generate(f"shared {i}", daemon, rng.choice(PROMPTS))
        if rng.random() < 0.2:
            done(daemon, "CLEAR disk")
    for daemon in both:
        assert status_of(daemon)["disk_corrupt"] == "0"
        assert daemon.close() == 0


def test_hostile_snapshot_files(start: Start, test_models: Path, tmp_path: Path, full: bool) -> None:
    model = test_models / f"{FAMILY}.gguf"
    checked = make_references(start, model)
    daemon = start(*ARGUMENTS, model=model)
    generate(daemon, PROMPTS[0], f"snap={len(PROMPTS[0])}:0")
    good = tmp_path / "good.snap"
    done(daemon, f"SAVE 0 {good}")
    data = good.read_bytes()
    bad = tmp_path / "bad.snap"
    rng = random.Random(6)
    for _ in range(2000 if full else 80):
        bad.write_bytes(data)
        damage(rng, bad, good)
        if bad.read_bytes() == data:
            continue
        daemon.send(f"LOAD 1 {bad}")
        reply = daemon.next_reply()
        assert isinstance(reply, Err)
        assert reply.code is ErrorCode.BAD_SNAPSHOT, reply
    for odd in (b"", b"luce", rng.randbytes(1 << 20)):
        bad.write_bytes(odd)
        daemon.send(f"LOAD 1 {bad}")
        reply = daemon.next_reply()
        assert isinstance(reply, Err)
        assert reply.code is ErrorCode.BAD_SNAPSHOT, reply
    daemon.send(f"LOAD 1 {tmp_path}", "LIST_SLOTS", "LOAD 1 /dev/zero")
    for expected in (Err, None, Err):
        reply = daemon.next_reply()
        assert expected is None or isinstance(reply, expected), reply
    assert status_of(daemon)["slots_used"] == "1"
    done(daemon, f"LOAD 1 {good}")
    assert checked.generate("after hostile files", daemon, PROMPTS[0], "restore=1").restored == len(PROMPTS[0])
