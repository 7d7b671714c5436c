"""`luce check` as a shell starts it: reports, exit codes, and what is said of wrong use."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from luce.supervisor.checking.checks import CHECKS
from tests.cli.conftest import Run

SHORT = ("--only", "restore", "--lengths", "256,4K", "--ctx", "2048", "--threads", "1")
FULL_TIMEOUT_S = 3600
SHIM = Path(__file__).resolve().parents[1] / "checking" / "faulty_luced.py"


def test_a_check_that_passes_reports_as_a_table_and_as_json(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    result = run("luce", "check", *SHORT, "--json", out, env={**os.environ, "COLUMNS": "160"})
    assert result.returncode == 0, result
    said = result.stdout.decode()
    assert "restored / read from the start" in said
    assert "1 passed, 1 left out" in said
    assert b"restore: 1 passed" in result.stderr
    report = json.loads(out.read_text())
    assert report["passed"]
    assert report["counts"] == {"passed": 1, "failed": 0, "left_out": 1}
    beyond, restored = report["findings"]
    assert (beyond["verdict"], beyond["text"]) == ("left out", "the context has 2,048 tokens")
    assert (restored["check"], restored["case"], restored["n_tokens"]) == ("restore", "256 tokens", 6 * 48)
    assert report["engine"]["kv"] == "q8_0/q8_0"
    noise = report["volume"]["noise"]  # measured, since none was given
    assert 0.3 <= noise < 1
    assert f"noise {noise:.2f} logits".encode() in result.stderr
    assert list(tmp_path.iterdir()) == [out]


def test_a_check_that_fails_says_where_and_exits_with_1(run: Run, luced: Path, tmp_path: Path) -> None:
    faulty = tmp_path / "faulty-luced"
    faulty.write_text(f'#!/bin/sh\nexec {sys.executable} {SHIM} SnapshotIgnored {luced} "$@"\n')
    faulty.chmod(0o755)
    environment = {**os.environ, "LUCE_DAEMON_BINARY": str(faulty)}
    result = run("luce", "check", *SHORT, "--json", "-", env=environment)
    assert result.returncode == 1, result
    report = json.loads(result.stdout)
    assert not report["passed"]
    assert "the engine went on from None" in report["findings"][1]["text"]


def test_ctrl_c_shows_what_was_found_and_what_is_missing(bin_dir: Path) -> None:
    arguments = ("--only", "restore,park", "--lengths", "256", "--ctx", "1024", "--threads", "1")
    with subprocess.Popen(
        [str(bin_dir / "luce"), "check", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "COLUMNS": "160"},
        text=True,
    ) as running:
        assert running.stderr is not None
        assert running.stdout is not None
        said = iter(running.stderr)
        assert re.match(r"luce check: about \d+ (s|min) on this machine \(\S+ tokens/s read, \S+ written", next(said))
        assert re.match(r"restore: 1 passed \(\d+\.\d s\), about \d+ (s|min) left$", next(said))
        running.send_signal(signal.SIGINT)
        shown = running.stdout.read()
        assert running.wait(120) == 130
    assert "restored / read from the start" in shown
    assert re.search(r"left out +│ park .*not begun: told to stop", shown)
    assert "1 passed, 1 left out; ended early: told to stop" in shown


def test_the_time_of_minutes_is_up(run: Run) -> None:
    result = run("luce", "check", "--minutes", "0.1", "--threads", "1")  # all of it takes hours
    assert result.returncode == 3, result
    assert b"the time is up (--minutes 0.1)" in result.stdout + result.stderr
    result = run("luce", "check", *SHORT, "--minutes", "0")
    assert result.returncode == 3, result
    assert b"the time is up (--minutes 0) before anything was checked" in result.stderr


def test_wrong_use_is_told(run: Run) -> None:
    for arguments, said in (
        (("--only", "restores"), b"'restores' is no check: they are reuse, restore, park"),
        (("--only", "park", "--skip", "park"), b"--only and --skip leave no check"),
        (("--lengths", "4K", "--ctx", "1024"), b"the context has 1,024 tokens"),
        (("--lengths", "many"), b"is not a number of tokens"),
    ):
        result = run("luce", "check", *arguments)
        assert (result.returncode, said in result.stderr) == (64, True), result
    result = run("luce", "check", "--only", "drafter", "--draft", "none", "--lengths", "256")
    assert result.returncode == 1
    assert b"nothing could be checked" in result.stderr


@pytest.mark.parametrize("arguments", [("--quick",), ("--lengths", "1K,4K")])
def test_the_packaged_model_passes_all(bin_dir: Path, full: bool, arguments: tuple[str, ...]) -> None:
    """Two cores would read 32,768 tokens for hours: those are a GPU's (docs/check.md)."""
    if not full:
        pytest.skip("each check alone, with short texts, is in tests/checking; all of it with --full")
    command = [
        str(bin_dir / "luce"), "check", *arguments, "--threads", "1", "--host-cache-type", "tq3",
        "--max-changed", "0.1", "--json", "-",
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, timeout=FULL_TIMEOUT_S, check=False)
    assert result.returncode == 0, result
    findings = json.loads(result.stdout)["findings"]
    assert {finding["check"] for finding in findings} == {check.name for check in CHECKS}
    assert [finding for finding in findings if finding["verdict"] != "passed"] == [
        finding for finding in findings if "such a text fits" in finding["text"]
    ]
