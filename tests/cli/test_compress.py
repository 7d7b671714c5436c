"""`luce compress` as a shell would use it: with an engine of its own, and with a server."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from luce.supervisor.text import TextModel
from tests.cli.conftest import TIMEOUT_S, Run, Shell
from tests.http.serving import Server
from tests.needles import CODE, QUESTION, SCORER, text_with_fact

TEXT = text_with_fact()
OWN = ("--prefill-scorer", str(SCORER), "--threads", "1")
KEY = "a key"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "long.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    path = tmp_path / "endless.txt"
    path.write_text(TEXT * 160)
    return path


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Server]:
    running = Server(tiny_model, {"prefill_scorer": SCORER, "api_keys": (KEY,)})
    try:
        yield running.start()
    finally:
        running.stop()


def figures(told: bytes) -> dict[str, str]:
    """Of the table."""
    rows = re.findall(r"│ ([\w ]+?) +│ +(\S+) │", told.decode())
    return dict(rows)


def test_what_matters_to_the_question_is_kept(run: Run, file: Path, tiny_model: Path) -> None:
    result = run("luce", "compress", file, *OWN, "--question", QUESTION)
    assert result.returncode == 0, result.stderr
    kept = result.stdout.decode()
    assert CODE in kept
    assert all(piece in TEXT for piece in kept.split(" […] "))
    told = figures(result.stderr)
    n_in = len(TextModel(tiny_model).tokenize(TEXT))
    assert told["tokens read"] == f"{n_in:,}"
    assert int(told["kept"]) <= round(0.2 * n_in)
    assert told["of it"] == f"{int(told['kept']) / n_in:.1%}"
    assert told["parts"] == str(kept.count(" […] ") + 1)
    assert float(told["seconds"]) > 0
    assert file.name in result.stderr.decode().replace("\n", "")  # a long path is broken


def test_json_says_all_of_it(run: Run) -> None:
    arguments = ("--json", "--tokens", "500", "--question", QUESTION, "--separator", "|")
    result = run("luce", "compress", "-", *OWN, *arguments, input=TEXT.encode())
    assert result.returncode == 0, result.stderr
    assert all(line.startswith(b"reading the text: ") for line in result.stderr.splitlines())  # on a busy machine
    said = json.loads(result.stdout)
    assert said["output_tokens"] == len(said["tokens"]) == sum(end - begin for begin, end in said["parts"]) <= 500
    assert said["input_tokens"] > 1500
    assert CODE in said["content"]
    assert said["content"].count("|") == len(said["parts"]) - 1
    assert said["seconds"] > 0


def test_all_of_a_text_is_the_text(run: Run, tmp_path: Path) -> None:
    text = "naïve café 🙂\n\tdef f(x):\n  return x <|im_end|>\r\n".encode() * 20
    result = run("luce", "compress", "-", *OWN, "--share", "1", input=text)
    assert result.stdout == text
    (tmp_path / "x").write_bytes(b"x")
    assert run("luce", "compress", tmp_path / "x", *OWN).stdout == b"x"


def test_a_server_says_the_same(run: Run, file: Path, server: Server) -> None:
    arguments = ("--json", "--share", "0.3", "--question", QUESTION)
    own = json.loads(run("luce", "compress", file, *OWN, *arguments).stdout)
    asked = run(
        "luce", "compress", file, "--url", f"{server.url}/v1", *arguments, env={**os.environ, "LUCE_API_KEY": KEY}
    )
    assert asked.returncode == 0, asked.stderr
    assert {**json.loads(asked.stdout), "seconds": 0} == {**own, "seconds": 0}
    plain = run(
        "luce", "compress", file, "--url", server.url, "--tokens", "400", env={**os.environ, "LUCE_API_KEY": KEY}
    )
    assert figures(plain.stderr)["tokens read"] == f"{own['input_tokens']:,}"


def test_what_a_server_refuses(run: Run, file: Path, server: Server, tiny_model: Path) -> None:
    result = run("luce", "compress", file, "--url", server.url, env={**os.environ, "LUCE_API_KEY": "another"})
    assert (result.returncode, b"LUCE_API_KEY" in result.stderr) == (1, True), result.stderr
    plain = Server(tiny_model, {})
    try:
        result = run("luce", "compress", file, "--url", plain.start().url)
    finally:
        plain.stop()
    assert (result.returncode, b"--prefill-scorer" in result.stderr) == (1, True), result.stderr
    result = run("luce", "compress", file, "--url", plain.url)
    assert (result.returncode, b"there is no server" in result.stderr) == (1, True), result.stderr


@pytest.mark.parametrize(
    ("arguments", "data", "code", "text"),
    [
        (["-"], b"x", 64, b"--prefill-scorer FILE"),
        (["-", "--prefill-scorer", "/no/such"], b"x", 2, b"--prefill-scorer /no/such: there is no such file"),
        (["-", "--prefill-scorer", "/etc/hostname"], b"x", 2, b"--prefill-scorer"),
        (["-", *OWN, "--model", "/no/such"], b"x", 2, b"no such file"),
        (["-", *OWN], b"", 64, b"standard input is empty"),
        (["-", *OWN], b"a\xff", 64, b"standard input is not UTF-8 text: byte 0xff at offset 1"),
        (["/no/such", *OWN], b"", 64, b"No such file"),
        (["-", *OWN, "--share", "0"], b"x", 64, b"--share"),
        (["-", *OWN, "--share", "1.5"], b"x", 64, b"--share"),
        (["-", *OWN, "--share", "0.5", "--tokens", "5"], b"x", 64, b"--tokens"),
        (["-", *OWN, "--tokens", "0"], b"x", 64, b"--tokens"),
        (["-", *OWN, "--tokens", "20"], TEXT.encode(), 64, b"--tokens 20: the text's beginning"),
        (["-", *OWN, "--question", os.fsdecode(b"\xff")], b"x", 64, b"--question is not UTF-8"),
        (["-", *OWN, "--url", "http://127.0.0.1:1"], b"x", 64, b"leave --url out"),
        (["-", "--url", "nonsense"], b"x", 64, b"--url"),
        ([*OWN], b"x", 64, b"FILE"),
    ],
)
def test_errors_have_their_exit_codes(run: Run, arguments: list[str], data: bytes, code: int, text: bytes) -> None:
    result = run("luce", "compress", *arguments, input=data)
    assert result.returncode == code, result.stderr
    assert text in result.stderr
    assert result.stdout == b""
    assert b"Traceback" not in result.stderr


def engine_of(process: subprocess.Popen[bytes]) -> psutil.Process:
    """Its luced, once there is one that has begun to compute."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        for child in psutil.Process(process.pid).children():
            if child.name() == "luced" and child.cpu_times().user > 0.5:
                return child
        time.sleep(0.02)
    pytest.fail("no engine")


def test_ctrl_c_ends_it_and_its_engine(bin_dir: Path, endless: Path) -> None:
    with subprocess.Popen(
        [bin_dir / "luce", "compress", endless, *OWN], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        engine = engine_of(process)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, output) == (128 + signal.SIGINT, b"")
        assert b"Traceback" not in errors
        assert not engine.is_running()


def test_an_engine_that_dies_is_an_error(bin_dir: Path, endless: Path) -> None:
    with subprocess.Popen(
        [bin_dir / "luce", "compress", endless, *OWN], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        engine_of(process).kill()
        output, errors = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, output) == (70, b"")
        assert b"SIGKILL" in errors
        assert b"Traceback" not in errors
        assert b"never retrieved" not in errors


def test_a_terminal_sees_how_far_it_is(bin_dir: Path, file: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [bin_dir / "luce", "compress", file, *OWN, "--question", QUESTION],
            stdout=subprocess.PIPE,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        ) as process:
            os.close(theirs)
            seen = b""
            while True:
                try:
                    seen += os.read(ours, 65536)
                except OSError:  # the other end is closed
                    break
            output, _ = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0
    finally:
        os.close(ours)
    assert CODE.encode() in output
    assert b"reading the text" in seen
    assert b"tokens read" in seen


def test_outputs_that_are_closed_or_full(shell: Shell) -> None:
    command = f"yes 'some words to read' | head -c 4000 | luce compress - {' '.join(OWN)}"
    full = shell(f"{command} >/dev/full")
    assert (full.returncode, b"No space left on device" in full.stderr) == (1, True), full.stderr
    closed = shell(f"{command} | exec true; echo ${{PIPESTATUS[@]: -2:1}}")
    assert closed.stdout == b"141\n", closed.stderr
    silent = shell(f"{command} 2>&-")
    assert (silent.returncode, silent.stderr) == (0, b"")
    assert b"some words" in silent.stdout
