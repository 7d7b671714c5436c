"""`luce-daemon`: what it checks, what it becomes, and --pipe with real pipes and real closed ends."""

from __future__ import annotations

import os
import re
import select
import signal
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from luce.protocol import Err, ErrorCode, parse_reply
from tests.cli.conftest import TIMEOUT_S, Run

PROMPT = (329, 285, 1420, 261, 1319)
PROMPT_BYTES = struct.pack("<5i", *PROMPT)


def ids_of(data: bytes) -> list[int]:
    return [value for (value,) in struct.iter_unpack("<i", data)]


@contextmanager
def started(command: list[str], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, **options) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def wait_until_gone(pids: list[int]) -> None:
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            gone, _, _ = select.select([pidfd], [], [], TIMEOUT_S)
            assert gone, f"process {pid} is still there"
        finally:
            os.close(pidfd)


def engines_of(process: subprocess.Popen[bytes]) -> list[int]:
    return [child.pid for child in psutil.Process(process.pid).children(recursive=True) if child.name() == "luced"]


def check_refused(result: subprocess.CompletedProcess[bytes], code: int, text: bytes) -> None:
    """As luced refuses to start: one line on stdout for the program that waits for it, the text on stderr too."""
    assert result.returncode == code, result.stderr
    (line,) = result.stdout.splitlines()
    reply = parse_reply(line)
    assert isinstance(reply, Err)
    assert (reply.code, reply.id) == (ErrorCode.START_FAILED, None)
    assert text in line
    assert text in b" ".join(result.stderr.split())  # click breaks its lines


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--ctx", "0"], b"--ctx"),
        (["--ctx", "many"], b"--ctx"),
        (["--ctx", "999999999"], b"--ctx"),
        (["--lanes", "100000"], b"--lanes"),
        (["--kv-offload", "0"], b"--kv-offload"),
        (["--kv-offload", "-64"], b"--kv-offload"),
        (["--kv-offload", "some"], b"--kv-offload"),
        (["--kv-offload", "auto", "--pool", "4096", "--ctx", "512"], b"give one of them"),
        (["--kv-offload", "64"], b"need at least"),
        (["--kv-offload", "4097"], b"no multiple"),
        (["--kv-offload", "4096", "--pool", "4096", "--ctx", "512"], b"give one of them"),
        (["--kv-offload-interval", "0"], b"--kv-offload-interval"),
        (["--kv-offload-interval", "32"], b"give --kv-offload N or --kv-offload auto too"),
        (["--kv-offload-pin", "0:64"], b"--kv-offload-pin is for a pool"),
        (["--kv-offload-interval", "65537"], b"--kv-offload-interval"),
        (["--kv-offload-policy", "newest"], b"lru"),
        (["--kv-offload-pin", "9:5"], b"begins before it ends"),
        (["--kv-offload", "4096", "--kv-offload-pin", "0:64,"], b"begins before it ends"),
        (["--kv-offload", "4096", "--kv-offload-pin", "0:8192"], b"has room for"),
        (["--kv-offload", "4096", "--kv-offload-policy", "draft"], b"--kv-offload-scorer FILE"),
        (["--kv-offload", "4096", "--kv-offload-policy", "lru", "--kv-offload-scorer", "s.gguf"], b"asks no scorer"),
        (["--kv-offload-scorer", "s.gguf"], b"give --kv-offload N or --kv-offload auto too"),
        (["--kv-offload", "4096", "--kv-offload-scorer-cache-type", "f16"], b"--kv-offload-scorer FILE"),
        (["--kv-offload-layer", "-1"], b"--kv-offload-layer"),
        (["--kv-offload-layer", "last"], b"--kv-offload-layer"),
        (["--kv-offload", "4096", "--kv-offload-layer", "0"], b"layer 3, 7, 11"),
        (["--kv-offload", "4096", "--kv-offload-layer", "7", "--kv-offload-policy", "lru"], b"asks no layer"),
        (["--cache-type-k", "q9"], b"q8_0"),
        (["--unknown"], b"--unknown"),
        (["--stream-fd", "99"], b"open it with 99>FILE"),
        (["-n", "4"], b"belongs to --pipe"),
        (["--temp", "0.5"], b"--temp belongs to --pipe"),
    ],
)
def test_bad_arguments_exit_64(run: Run, arguments: list[str], text: bytes) -> None:
    check_refused(run("luce-daemon", *arguments, stdin=subprocess.DEVNULL), 64, text)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--mux"],
        ["--embedding", "auto"],
        ["-n", "-1"],
        ["-n", "99999999999"],
        ["--top-k", "99999999999999"],
        ["--temp", "nan"],
        ["--temp", "inf"],
        ["--temp", "1e39"],
        ["--presence", "nan"],
        ["--frequency", "-inf"],
        ["--repeat", "1e999"],
    ],
)
def test_bad_arguments_of_pipe_exit_64(run: Run, arguments: list[str]) -> None:
    result = run("luce-daemon", "--pipe", *arguments, input=PROMPT_BYTES)
    assert (result.returncode, result.stdout) == (64, b"")
    assert arguments[0].encode() in result.stderr


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("/no/such.gguf", b"there is no such file"),
        ("/tmp", b"is a folder"),
        ("/dev/zero", b"no regular file"),
        ("/etc/passwd/x", b"Not a directory"),
        ("/etc/hostname", b"/etc/hostname"),
    ],
)
def test_a_model_file_that_is_none_exits_2(run: Run, model: str, text: bytes) -> None:
    check_refused(run("luce-daemon", "--model", model, stdin=subprocess.DEVNULL), 2, text)
    piped = run("luce-daemon", "--model", model, "--pipe", input=PROMPT_BYTES)
    assert (piped.returncode, piped.stdout) == (2, b"")
    assert text in piped.stderr


def test_it_becomes_luced(bin_dir: Path, tiny_model: Path) -> None:
    command = [str(bin_dir / "luce-daemon"), "--model", str(tiny_model), "--ctx", "512"]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith(b"[daemon] ready proto=2 ")
        assert int(re.search(rb" pid=(\d+)", ready)[1]) == process.pid  # type: ignore[index]
        assert psutil.Process(process.pid).name() == "luced"
        out, _ = process.communicate(b"ping hello\n", timeout=TIMEOUT_S)
        assert out == b"pong hello\n"
        assert process.returncode == 0


def test_tokens_go_to_the_stream_fd(bin_dir: Path, tiny_model: Path, tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.bin"
    prompt.write_bytes(PROMPT_BYTES)
    reader, writer = os.pipe()
    command = [str(bin_dir / "luce-daemon"), "--model", str(tiny_model), "--threads", "1", "--no-warmup"]
    command += ["--stream-fd", str(writer)]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(writer,)) as process:
        os.close(writer)
        out, _ = process.communicate(f"{prompt} 8\n".encode(), timeout=TIMEOUT_S)
    with open(reader, "rb") as tokens:
        *generated, sentinel = ids_of(tokens.read())
    assert sentinel == -1
    assert f" gen={len(generated)} ".encode() in out


def test_a_drafter_that_is_none_exits_2(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    text = tmp_path / "q.txt"
    text.write_text("What is a drafter?")
    folder = tmp_path / "folder"
    folder.mkdir()
    for draft, words in (
        (tmp_path / "none", b"there is no such file"),
        (text, b"is no GGUF file"),
        (Path("/dev/zero"), b"no regular file"),
        (folder, b"no config.json and no *.safetensors"),
    ):
        check_refused(run("luce-daemon", "--draft", draft, stdin=subprocess.DEVNULL), 2, words)
    (folder / "config.json").write_text("{}")
    check_refused(run("luce-daemon", "--draft", folder, stdin=subprocess.DEVNULL), 2, b"no *.safetensors")
    (folder / "draft.gguf").symlink_to(tiny_model.with_name("luce-tiny-dflash-Q8_0.gguf"))
    assert run("luce-daemon", "--model", tiny_model, "--draft", folder, input=b"quit\n").returncode == 0


def test_a_start_that_fails_exits_2(run: Run, tmp_path: Path) -> None:
    model = tmp_path / "torn.gguf"
    model.write_bytes(b"GGUF\x03\x00\x00\x00")
    for arguments in (["--pipe"], []):
        result = run("luce-daemon", "--model", model, *arguments, input=PROMPT_BYTES)
        assert result.returncode == 2, result.stderr
        assert b"torn.gguf" in result.stderr


def test_pipe_writes_tokens_alone(run: Run, tiny_model: Path) -> None:
    result = run("luce-daemon", "--model", tiny_model, "--pipe", "-n", "12", "--ignore-eos", input=PROMPT_BYTES)
    assert result.returncode == 0, result.stderr
    ids = ids_of(result.stdout)
    assert len(ids) == 12
    assert min(ids) >= 0
    assert b"ok " in result.stderr
    text_prompt = " ".join(map(str, PROMPT)).encode()
    text = run(
        "luce-daemon", "--model", tiny_model, "--pipe", "--text-ids", "-n", "12", "--ignore-eos", input=text_prompt
    )
    assert [int(line) for line in text.stdout.splitlines()] == ids


@pytest.mark.parametrize(("size", "policy"), [("640", "query"), ("640", "lru"), ("auto", "query")])
def test_a_prompt_may_be_longer_than_a_bounded_pool(run: Run, tiny_model: Path, size: str, policy: str) -> None:
    prompt = struct.pack("<1500i", *(2 + i * 7 % 8000 for i in range(1500)))
    arguments = ["--model", str(tiny_model), "--pipe", "-n", "40", "--ignore-eos", "--lanes", "1", "--ubatch", "64"]
    bounded = ["--kv-offload", size, "--kv-offload-interval", "16", "--kv-offload-policy", policy, "--host-cache", "1G"]
    result = run("luce-daemon", *arguments, *bounded, input=prompt)
    assert result.returncode == 0, result.stderr
    assert len(ids_of(result.stdout)) == 40
    assert b" N=1500 " in result.stderr


def test_pipe_samples_by_its_seed(run: Run, tiny_model: Path) -> None:
    def sample(seed: int) -> bytes:
        arguments = ["--pipe", "-n", "20", "--temp", "1.5", "--ignore-eos", "--seed", str(seed)]
        return run("luce-daemon", "--model", tiny_model, *arguments, input=PROMPT_BYTES).stdout

    assert sample(1) == sample(1) != sample(2)


@pytest.mark.parametrize(
    ("arguments", "data", "code", "text"),
    [
        (["--pipe"], b"", 64, b"no prompt ids"),
        (["--pipe"], b"12345", 64, b"bytes too many for int32 ids"),
        (["--pipe", "--text-ids"], b"1 two 3", 64, b"'two'"),
        (["--pipe"], struct.pack("<i", 10**6), 1, b"token_out_of_range"),
        (["--pipe"], struct.pack("<i", -5), 64, b"-5"),
        (["--pipe"], b"1 2 3 4\n", 1, b"--text-ids"),
        (["--pipe"], "naïv".encode() + b"et\xe9", 64, b"--text-ids"),
        (["--pipe", "--text-ids"], b"1000000", 1, b"token_out_of_range"),
        (["--pipe"], struct.pack("<i", 5000) * 4_000_000, 1, b"prompt_too_long"),  # as a line: over 16 MiB
        (["--pipe", "--ctx", "64"], struct.pack("<i", 5) * 100, 1, b"prompt_too_long"),
    ],
)
def test_pipe_says_what_is_wrong_with_its_prompt(
    run: Run, tiny_model: Path, arguments: list[str], data: bytes, code: int, text: bytes
) -> None:
    result = run("luce-daemon", "--model", tiny_model, *arguments, input=data)
    assert (result.returncode, result.stdout) == (code, b"")
    assert text in result.stderr


def test_a_warning_of_luced_is_shown(run: Run, luced: Path, tiny_model: Path) -> None:
    if b"kind=gpu" in subprocess.run([luced, "--version"], capture_output=True, timeout=120, check=True).stdout:
        pytest.skip("left out: it warns of a GPU that is not there, and here is one")
    piped = run("luce-daemon", "--model", tiny_model, "--pipe", "-n", "2", "--gpu-layers", "4", input=PROMPT_BYTES)
    typed = run("luce", "run", "x", "-n", "2", "--gpu-layers", "4", "--model", tiny_model)
    for result in (piped, typed):
        assert result.returncode == 0
        assert result.stderr.count(b"luced warn: --gpu-layers") == 1
        others = [line for line in result.stderr.splitlines() if b"loaded within" not in line]  # on a busy machine
        assert len(others) <= 2  # and the reply of --pipe


@pytest.fixture
def long_pipe(bin_dir: Path, tiny_model: Path) -> list[str]:
    command = [str(bin_dir / "luce-daemon"), "--model", str(tiny_model), "--threads", "1", "--no-warmup"]
    return [*command, "--pipe", "--ignore-eos", "-n", "8000"]


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    path = tmp_path / "prompt.bin"
    path.write_bytes(PROMPT_BYTES)
    return path


def test_a_closed_right_end_stops_the_left(long_pipe: list[str], prompt_file: Path) -> None:
    with (
        prompt_file.open("rb") as prompt,
        started(long_pipe, stdin=prompt, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process,
    ):
        assert process.stdout is not None
        assert len(process.stdout.read(8)) == 8
        engines = engines_of(process)
        assert len(engines) == 1
        process.stdout.close()
        assert process.wait(timeout=TIMEOUT_S) == -signal.SIGPIPE
        wait_until_gone(engines)


def test_a_right_end_that_is_closed_before_the_first_token(bin_dir: Path, tiny_model: Path) -> None:
    # A prompt that takes a while to read: the end is noticed without anything being written.
    command = [str(bin_dir / "luce-daemon"), "--model", str(tiny_model), "--threads", "1", "--no-warmup"]
    command += ["--pipe", "--ctx", "8192"]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.close()
        process.stdin.write(PROMPT_BYTES * 1600)
        process.stdin.close()
        assert process.wait(timeout=TIMEOUT_S) == -signal.SIGPIPE


def test_head_in_a_shell(long_pipe: list[str], prompt_file: Path) -> None:
    line = f"{' '.join(long_pipe)} < {prompt_file} | head -c 40 | wc -c; echo ${{PIPESTATUS[@]}}"
    result = subprocess.run(["bash", "-c", line], capture_output=True, timeout=TIMEOUT_S, check=True)
    assert result.stdout.split() == [b"40", b"141", b"0", b"0"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_takes_the_engine_along(long_pipe: list[str], prompt_file: Path, number: signal.Signals) -> None:
    with (
        prompt_file.open("rb") as prompt,
        started(long_pipe, stdin=prompt, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process,
    ):
        assert process.stdout is not None
        process.stdout.read(8)
        engines = engines_of(process)
        process.send_signal(number)
        code = process.wait(timeout=TIMEOUT_S)
        assert code in (128 + number, -number)
        wait_until_gone(engines)


def test_an_engine_that_dies_exits_70(long_pipe: list[str], prompt_file: Path) -> None:
    with (
        prompt_file.open("rb") as prompt,
        started(long_pipe, stdin=prompt, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(8)
        os.kill(engines_of(process)[0], signal.SIGKILL)
        process.stdout.read()
        assert process.wait(timeout=TIMEOUT_S) == 70
        assert b"SIGKILL" in process.stderr.read()


def test_a_slow_reader_loses_nothing(long_pipe: list[str], prompt_file: Path) -> None:
    # The tokens do not fit into the pipe: the writer has to wait for us, and we for it.
    n_tokens = 1500
    command = [*long_pipe[:-1], str(n_tokens)]
    with (
        prompt_file.open("rb") as prompt,
        started(command, stdin=prompt, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pipesize=4096) as process,
    ):
        assert process.stdout is not None
        n_bytes = 0
        while data := os.read(process.stdout.fileno(), 512):
            n_bytes += len(data)
        assert process.wait(timeout=TIMEOUT_S) == 0
        assert n_bytes == n_tokens * 4


def test_version_and_help(run: Run) -> None:
    version = run("luce-daemon", "--version")
    assert version.returncode == 0
    assert version.stdout.startswith(b"luced ")
    assert b"--stream-fd" in run("luce-daemon", "--help").stdout
