"""How the commands end when their input, their output or their start fails: one clear line, a code, no traceback."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Shell

IDS = "printf '\\111\\001\\000\\000'"  # 329
DAEMON = "luce-daemon --threads 1 --no-warmup --model $MODEL"
RUN = "luce run x -n 4 --threads 1 --no-warmup --model $MODEL"


def check(result: subprocess.CompletedProcess[bytes], code: int, text: bytes) -> None:
    assert result.returncode == code, result.stderr
    lines = result.stderr.splitlines()
    assert [line for line in lines if line.startswith(b"Error: ")] == lines[-1:], result.stderr
    assert text in lines[-1]
    for word in (b"Traceback", b"Exception"):
        assert word not in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        "luce inspect $MODEL",
        "luce inspect $MODEL --json",
        "luce --help",
        "luce --version",
        "luce serve --help",
        "luce run --help",
        "luce-daemon --help",
        "echo hello | luce tokenize -",
        f"{IDS} | luce detokenize",
        RUN,
        f"{RUN} --json",
        f"{IDS} | {DAEMON} --pipe -n 4 --log-level error",
    ],
)
def test_a_full_disk(shell: Shell, command: str) -> None:
    check(shell(f"{command} >/dev/full"), 1, b"No space left on device")


def test_a_full_disk_under_the_daemons_version(shell: Shell) -> None:
    result = shell("luce-daemon --version >/dev/full")
    assert result.returncode == 1
    assert b"No space left on device" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        "luce inspect $MODEL",
        "echo hello | luce tokenize -",
        f"{IDS} | luce detokenize",
        RUN,
        f"{IDS} | {DAEMON} --pipe",
    ],
)
def test_a_closed_output(shell: Shell, command: str) -> None:
    check(shell(f"{command} >&-"), 64, b"standard output is closed")


@pytest.mark.parametrize("command", ["luce tokenize -", "luce detokenize", "luce run -", f"{DAEMON} --pipe"])
def test_a_closed_input(shell: Shell, command: str) -> None:
    check(shell(f"{command} <&-"), 64, b"standard input is closed")


@pytest.mark.parametrize("command", ["luce tokenize -", "luce detokenize", "luce run -", f"{DAEMON} --pipe"])
def test_an_input_that_cannot_be_read(shell: Shell, command: str) -> None:
    check(shell(f"{command} 0>/dev/null"), 1, b"standard input cannot be read")  # open for writing only


def test_closed_streams_that_are_not_needed(shell: Shell) -> None:
    for closed in ("<&-", "2>&-", "<&- 2>&-", "2>/dev/full"):
        result = shell(f"{RUN} {closed}")
        assert (result.returncode, result.stderr) == (0, b"")
        assert result.stdout != b""


@pytest.mark.parametrize(
    "command",
    [
        "yes 'some text' | head -c 1000000 | luce tokenize -",
        f"{IDS} | {DAEMON} --pipe --ignore-eos -n 8000 2>/dev/null | luce detokenize",
        "luce inspect $MODEL",
        "luce --help",
    ],
)
def test_a_right_end_that_is_closed(shell: Shell, command: str) -> None:
    # The reader is gone before the left side says its first word.
    result = shell(f"{command} | exec true; echo ${{PIPESTATUS[@]: -2:1}}")
    assert result.stdout == b"141\n", result.stderr
    assert result.stderr == b""


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (f"echo 1 | {DAEMON} --pipe --text-ids --model $TMPDIR/bad.gguf", 2),
        (f"echo 1 | {DAEMON} --pipe --text-ids --ctx 999999999", 64),
        (f"{RUN} --ctx 999999999", 64),
    ],
)
def test_a_start_that_fails_says_so_and_nothing_else(shell: Shell, tmp_path: Path, command: str, code: int) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(100))
    for _ in range(7):
        result = shell(command)
        assert result.returncode == code
        assert result.stdout == b""
        assert b"Error: " in result.stderr
        assert b"Traceback" not in result.stderr
        assert b"Exception" not in result.stderr


def test_doctor_with_a_model_that_is_none(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(100))
    for _ in range(3):
        result = shell("luce doctor --model $TMPDIR/bad.gguf")
        assert (result.returncode, result.stderr.count(b"Traceback")) == (1, 0)
