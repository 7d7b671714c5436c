"""`luce run`, `luce tokenize`, `luce detokenize`, `luce doctor`: as a shell would use them, against the reference."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import TIMEOUT_S, Run
from tests.conftest import GoldenCase
from tests.daemon.same_tokens import NOISE_GOLDEN, Comparison


def ids_of(data: bytes) -> list[int]:
    return [value for (value,) in struct.iter_unpack("<i", data)]


def test_tokenize_as_the_reference_does(run: Run, tiny_model: Path, golden: list[GoldenCase]) -> None:
    for case in golden[:4]:
        result = run("luce", "tokenize", "--model", tiny_model, "-", input=case.prompt.encode())
        assert ids_of(result.stdout) == list(case.prompt_ids)


def test_there_and_back(run: Run, tmp_path: Path) -> None:
    text = "naïve café 🙂\n\tdef f(x):\n  return x\n".encode()
    file = tmp_path / "text"
    file.write_bytes(text)
    for options in ([], ["--text-ids"]):
        ids = run("luce", "tokenize", file, *options)
        assert ids.returncode == 0, ids.stderr
        assert run("luce", "detokenize", *options, input=ids.stdout).stdout == text


def test_special_tokens_on_demand(run: Run) -> None:
    as_token = ids_of(run("luce", "tokenize", "-", input=b"<|im_end|>").stdout)
    as_text = ids_of(run("luce", "tokenize", "--no-special", "-", input=b"<|im_end|>").stdout)
    assert len(as_token) == 1 < len(as_text)
    data = struct.pack("<i", as_token[0])
    assert run("luce", "detokenize", input=data).stdout == b""
    assert run("luce", "detokenize", "--special", input=data).stdout == b"<|im_end|>"


def test_detokenize_writes_as_ids_come(bin_dir: Path) -> None:
    with subprocess.Popen(
        [str(bin_dir / "luce"), "detokenize", "--text-ids"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"329\n")
        process.stdin.flush()
        assert os.read(process.stdout.fileno(), 100) != b""  # while its stdin is still open
        process.stdin.close()
        assert process.wait(timeout=TIMEOUT_S) == 0


@pytest.mark.parametrize(
    ("arguments", "data", "code", "text"),
    [
        (["tokenize", "/no/such"], b"", 64, b"No such file"),
        (["tokenize", "-", "--model", "/no/such"], b"", 2, b"no such file"),
        (["tokenize", "/tmp"], b"", 64, b"Is a directory"),
        (["tokenize", "-"], b"a\xff", 64, b"standard input is not UTF-8 text: byte 0xff at offset 1"),
        (["tokenize", "-"], b"abc\xed\xa0\x80", 64, b"not UTF-8 text: byte 0xed at offset 3"),
        (["tokenize", "-"], bytes(range(256)), 64, b"not UTF-8 text: byte 0x80 at offset 128"),
        (["run", "-"], b"ab\xc3(", 64, b"not UTF-8 text: byte 0xc3 at offset 2"),
        (["run", os.fsdecode(b"\xff")], b"", 64, b"PROMPT is not UTF-8 text: byte 0xff at offset 0"),
        (["run", "x", "--stop", os.fsdecode(b"a\xff")], b"", 64, b"--stop is not UTF-8 text"),
        (["run", "x", "--temp", "nan"], b"", 64, b"--temp"),
        (["run", "x", "-n", "99999999999"], b"", 64, b"-n"),
        (["tokenize", "-", "--model", "/etc/hostname"], b"x", 2, b"/etc/hostname"),
        (["detokenize", "--text-ids"], b"9999999", 1, b"9999999"),
        (["detokenize"], b"123", 64, b"--text-ids"),
        (["run"], b"", 64, b"PROMPT"),
        (["run", "x", "--system", "y"], b"", 64, b"belongs to --chat"),
        (["run", ""], b"", 64, b"no tokens"),
        (["nonsense"], b"", 64, b"nonsense"),
    ],
)
def test_errors_have_their_exit_codes(run: Run, arguments: list[str], data: bytes, code: int, text: bytes) -> None:
    result = run("luce", *arguments, input=data)
    assert result.returncode == code, result.stderr
    assert text in result.stderr
    assert b"Traceback" not in result.stderr


def test_a_model_without_a_vocabulary_takes_ids_only(run: Run, test_models: Path) -> None:
    model = test_models / "no_vocab.gguf"
    result = run("luce", "tokenize", "--model", model, "-", input=b"text")
    assert result.returncode == 1
    assert b"--text-ids" in result.stderr
    ids = run("luce-daemon", "--model", model, "--pipe", "--text-ids", "-n", "4", input=b"1 2 3")
    assert len(ids.stdout.split()) == 4


def test_the_pipeline_gives_the_references_text(bin_dir: Path, tiny_model: Path, golden: list[GoldenCase]) -> None:
    case = next(case for case in golden if case.kind == "copy")
    model = f"--model {tiny_model}"
    line = (
        f"{bin_dir}/luce tokenize {model} - | {bin_dir}/luce-daemon {model} --threads 1 --no-warmup --pipe"
        f" -n {len(case.tokens)} | {bin_dir}/luce detokenize {model} --special"
    )
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        input=case.prompt.encode(),
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.decode().removesuffix("<|im_end|>") == case.text.removesuffix("<|im_end|>")


def test_greedy_answers_are_the_references(run: Run, tiny_model: Path, golden: list[GoldenCase], full: bool) -> None:
    comparison = Comparison(NOISE_GOLDEN)
    for number, case in enumerate(golden if full else golden[::3]):
        result = run("luce", "run", "-", "--model", tiny_model, "-n", str(len(case.tokens)), "--json",
                     input=case.prompt.encode())  # fmt: skip
        values = json.loads(result.stdout)
        assert values["prompt_ids"] == list(case.prompt_ids)
        comparison.check(f"{case.kind} {number}", values["ids"], case.tokens, case.margins)
        assert values["timings"]["first_token_s"] > 0
    comparison.finish()


def test_run_streams_text(run: Run) -> None:
    plain = run("luce", "run", "def fibonacci(n):", "-n", "12")
    assert plain.returncode == 0
    assert plain.stdout != b""
    assert plain.stderr == b""
    values = json.loads(run("luce", "run", "def fibonacci(n):", "-n", "12", "--json").stdout)
    assert values["text"].encode() == plain.stdout
    assert values["stop"] in {"limit", "eos"}


def test_run_chats(run: Run) -> None:
    chat = run("luce", "run", "--chat", "Who are you?", "--system", "You are a helpful assistant.")
    assert chat.returncode == 0, chat.stderr
    assert chat.stdout.strip() != b""
    assert b"<|im_" not in chat.stdout


def test_run_ends_at_a_stop_text(run: Run) -> None:
    whole = json.loads(run("luce", "run", "for i in range(10):", "-n", "40", "--json").stdout)["text"]
    stop = whole[8:11]
    cut = json.loads(run("luce", "run", "for i in range(10):", "-n", "40", "--json", "--stop", stop).stdout)
    assert cut["stop"] == "stop"
    assert cut["text"] == whole[: whole.index(stop)]


def test_sampling_follows_its_seed(run: Run) -> None:
    def sample(seed: int) -> bytes:
        return run("luce", "run", "import os", "-n", "20", "--temp", "1.2", "--seed", str(seed)).stdout

    assert sample(1) == sample(1) != sample(2)


def test_ctrl_c_ends_run_and_its_engine(bin_dir: Path) -> None:
    command = [str(bin_dir / "luce"), "run", "import os", "-n", "8000", "--ignore-eos", "--threads", "1", "--no-warmup"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(10) != b""
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 128 + signal.SIGINT
        assert b"Traceback" not in errors


def test_doctor_finds_all_well(run: Run) -> None:
    result = run("luce", "doctor", env={**os.environ, "COLUMNS": "200"})
    assert result.returncode == 0, result.stdout
    for word in (b"daemon", b"llama.cpp b", b"generation", b"text", b"device"):
        assert word.split()[0] in result.stdout
    assert b"BROKEN" not in result.stdout


def test_doctor_finds_what_is_broken(run: Run, tmp_path: Path) -> None:
    program = tmp_path / "luced"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    result = run("luce", "doctor", env={**os.environ, "LUCE_DAEMON_BINARY": str(program), "COLUMNS": "200"})
    assert result.returncode == 1
    assert result.stdout.count(b"BROKEN") == 2


def test_doctor_shows_whole_paths(run: Run, luced: Path) -> None:
    result = run("luce", "doctor", env={**os.environ, "COLUMNS": "50"})
    cells = [line.split("│")[3].strip() for line in result.stdout.decode().splitlines() if line.count("│") == 4]
    assert str(luced) in "".join(cells)


def test_doctor_finds_a_backend_that_is_not_loaded(run: Run) -> None:
    variables = {"GGML_BACKEND_PATH": "/no/such.so", "COLUMNS": "200"}
    result = run("luce", "doctor", env={**os.environ, **variables})
    assert result.returncode == 1
    assert result.stdout.count(b"BROKEN") == 1
    assert b"GGML_BACKEND_PATH=/no/such.so was not loaded: failed to load" in result.stdout


def test_help_is_quick_and_teaches(run: Run) -> None:
    """Quick: what takes long to import is not."""
    for command in ([], ["run"], ["tokenize"], ["detokenize"], ["compress"], ["inspect"], ["doctor"]):
        result = run("luce", *command, "--help", env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"})
        assert result.returncode == 0
        assert result.stdout.startswith(b"Usage: luce")
        imported = {line.rpartition(b"|")[2].strip() for line in result.stderr.splitlines()}
        assert b"click" in imported
        assert imported & {b"aiohttp", b"gguf", b"numpy", b"pydantic", b"rich"} == set()
