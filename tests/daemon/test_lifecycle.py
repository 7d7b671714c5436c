"""How a daemon starts, ends and outlives the people it talks to."""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import gguf
import pytest

from luce.protocol import End, Err, ErrorCode, GenerateOk, PlainOk, Pong, ReadyLine, StopReason, parse_reply
from tests.daemon.conftest import Start
from tests.daemon.exactness import status_of
from tests.daemon_driver import DaemonDriver, DaemonEnded, gen_line, random_prompt, to_bytes

LONG = "ignore_eos=1"
ENDS_WITHIN_S = 120.0
# What `status` says besides where texts may outgrow the pool.
OUTGROWN = (
    "pages_out", "pages_moved_in", "pages_moved_out", "page_bytes_in", "page_bytes_out", "page_choices",
    "page_choices_cut", "pages_wanted", "pages_found", "page_keys_bytes", "scorer_bytes", "lane_pages", "page_stall_s",
)  # fmt: skip

QUICKLY = ("--threads", "1", "--no-warmup")


def test_the_first_line_says_what_was_started(start: Start, gpu: bool) -> None:
    ready = start("--ctx", "1000", "--pool", "3000", "--lanes", "3").ready
    fields = dict(ready.fields)
    kv = "f16/f16" if gpu else "q8_0/q8_0"
    assert fields["proto"] == "2"
    assert (fields["ctx"], fields["pool"], fields["lanes"], fields["page"]) == ("1000", "3000", "3", "64")
    assert fields["kvflash"] == "off"
    assert (fields["arch"], fields["vocab"], fields["kv"]) == ("qwen35", "8192", kv)
    assert int(fields["pid"]) > 0


def test_a_daemon_whose_texts_may_outgrow_the_pool_says_so(start: Start) -> None:
    daemon = start("--kv-offload", "640", "--ctx", "2048", "--lanes", "1", "--ubatch", "64", "--host-cache", "256M")
    fields = dict(daemon.ready.fields)
    assert (fields["ctx"], fields["pool"], fields["kvflash"]) == ("2048", "640", "640")
    before = status_of(daemon)
    assert [before[name] for name in OUTGROWN] == ["0"] * 11 + ["none", "0.000000"]
    assert len(daemon.generate(random_prompt(1500), 4, LONG).tokens) == 4
    after = status_of(daemon)
    assert after["integrity"] == "ok"
    assert after["pages_out"] == "0", "nothing runs"
    assert int(after["pages_moved_out"]) >= (1500 - 640) // 64
    # Most had a copy in the host when they left.
    assert int(after["page_bytes_out"]) <= int(after["pages_moved_out"]) * int(fields["page_bytes"])
    assert int(after["page_bytes_in"]) == int(after["pages_moved_in"]) * int(fields["page_bytes"])
    assert int(after["pages_found"]) <= int(after["pages_wanted"])
    assert float(after["page_stall_s"]) > 0
    assert not set(OUTGROWN) & set(status_of(start("--ctx", "256")))


def test_what_llama_cpp_mends_in_a_file_by_itself_is_told_at_debug_alone(luced: Path, test_models: Path) -> None:
    model = test_models / "no_vocab.gguf"

    def log(level: str) -> str:
        command = [str(luced), "--model", str(model), "--ctx", "256", "--no-warmup", "--log-level", level]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stderr

    assert "dummy tokens" not in log("info")
    assert "dummy tokens" in log("debug")


def test_identity_is_of_the_content_and_not_of_the_path(luced: Path, tiny_model: Path, tmp_path: Path) -> None:
    def identity(model: Path, *arguments: str) -> str:
        with DaemonDriver(luced, model, *QUICKLY, "--ctx", "256", *arguments) as daemon:
            return dict(daemon.ready.fields)["identity"]

    copy = tmp_path / "another-name.gguf"
    copy.write_bytes(tiny_model.read_bytes())
    os.utime(copy, (0, 0))
    same = identity(tiny_model)
    assert identity(copy) == same
    assert identity(tiny_model, "--cache-type-k", "bf16") != same
    data = bytearray(copy.read_bytes())
    data[-100] ^= 1
    copy.write_bytes(data)
    assert identity(copy) != same


@pytest.mark.parametrize(
    ("arguments", "status", "named"),
    [
        (["--bogus"], 64, "--bogus"),
        ([], 64, "--model"),
        (["--model"], 64, "--model"),
        (["--model", "/nonexistent.gguf"], 2, "/nonexistent.gguf"),
        (["--model", "/"], 2, "/"),
        (["--model", "{model}", "--ctx", "0"], 64, "--ctx"),
        (["--model", "{model}", "--stream-fd", "99"], 64, "99"),
        (["--model", "{model}", "--stream-fd", "0"], 64, "--stream-fd"),
        (["--model", "{model}", "--cache-type-k", "q99"], 64, "q99"),
        (["--model", "{model}", "--flash-attn", "off", "--cache-type-v", "q8_0"], 64, "flash"),
        (["--model", "{model}", "--lanes", "257"], 64, "--lanes"),
        (["--model", "{model}", "--draft-max", "65"], 64, "--draft-max"),
        (["--model", "{model}", "--draft-tree", "257"], 64, "--draft-tree"),
        (["--model", "{model}", "--draft-adaptive", "maybe"], 64, "on, off"),
        (["--model", "{model}", "--draft", ""], 64, "--draft"),
        (["--model", "{model}", "--draft-threads", "2"], 64, "--mtp"),
        (["--model", "{model}", "--pool", "10", "--ctx", "20"], 64, "--pool"),
        (["--model", "{model}", "--kv-offload", "-64"], 64, "need at least"),
        (["--model", "{model}", "--kv-offload", "4097"], 64, "4160 is"),
        (["--model", "{model}", "--kv-offload", "4096", "--pool", "8192"], 64, "give one of them"),
        (["--model", "{model}", "--kv-offload", "4096", "--flash-attn", "off"], 64, "flash"),
        (["--model", "{model}", "--kv-offload", "4096", "--host-cache", "1M"], 64, "--host-cache"),
        (["--model", "{model}", "--kv-offload-interval", "0"], 64, "--kv-offload-interval"),
        (["--model", "{model}", "--kv-offload-policy", "newest"], 64, "lru"),
    ],
)
def test_a_start_that_fails_says_why_and_exits_with_its_code(
    luced: Path, tiny_model: Path, arguments: list[str], status: int, named: str
) -> None:
    filled = [argument.format(model=tiny_model) for argument in arguments]
    done = subprocess.run(
        [str(luced), *filled], capture_output=True, stdin=subprocess.DEVNULL, timeout=120, check=False
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 1
    reply = parse_reply(lines[0])
    assert isinstance(reply, Err)
    assert reply.code is ErrorCode.START_FAILED
    assert named in reply.text
    assert done.returncode == status


def test_a_token_fd_that_is_open_for_reading_only_is_refused(luced: Path, tiny_model: Path) -> None:
    with Path(os.devnull).open("rb") as reader:
        done = subprocess.run(
            [str(luced), "--model", str(tiny_model), *QUICKLY, "--stream-fd", str(reader.fileno())],
            pass_fds=(reader.fileno(),), capture_output=True, stdin=subprocess.DEVNULL, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 64
    assert b"reading only" in done.stdout


def refusal_of(luced: Path, model: Path) -> str:
    """The one line with which a daemon refuses to start with this file."""
    done = subprocess.run(
        [str(luced), "--model", str(model)], capture_output=True, stdin=subprocess.DEVNULL, timeout=120, check=False
    )
    assert done.returncode == 2
    assert done.stdout.endswith(b"\n")
    assert done.stdout.count(b"\n") == 1
    return done.stdout.decode()


def test_a_truncated_model_is_refused(luced: Path, tiny_model: Path, tmp_path: Path) -> None:
    half = tmp_path / "half.gguf"
    half.write_bytes(tiny_model.read_bytes()[: 8 << 20])
    line = refusal_of(luced, half)
    assert line.startswith("err start_failed ")
    assert str(half) in line
    assert "corrupted or incomplete" in line


@pytest.mark.parametrize("key", ["block_count", "embedding_length", "attention.head_count"])
def test_a_model_at_odds_with_itself_is_refused(luced: Path, tiny_model: Path, tmp_path: Path, key: str) -> None:
    """Whether libllama refuses it or dies, divides by zero say: one line with the same code that names the file."""
    name = f"qwen35.{key}".encode()
    contents = bytearray(tiny_model.read_bytes())
    value_at = contents.index(name + struct.pack("<I", gguf.GGUFValueType.UINT32)) + len(name) + 4
    contents[value_at : value_at + 4] = struct.pack("<I", 0)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(contents)
    line = refusal_of(luced, broken)
    assert line.startswith("err start_failed ")
    assert str(broken) in line


def test_nothing_but_replies_reaches_stdout(luced: Path, tiny_model: Path) -> None:
    done = subprocess.run(
        [str(luced), "--model", str(tiny_model), "--threads", "1", "--log-level", "debug"],
        input=b"ping a\nping b\n", capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    first, *others = done.stdout.splitlines()
    assert isinstance(parse_reply(first), ReadyLine)
    assert others == [b"pong a", b"pong b"]
    assert b"llama" in done.stderr


def test_without_a_warm_up_nothing_is_measured_at_the_start(luced: Path, tiny_model: Path) -> None:
    done = subprocess.run(
        [str(luced), "--model", str(tiny_model), *QUICKLY, "--log-level", "debug"],
        capture_output=True, stdin=subprocess.DEVNULL, timeout=120, check=True,
    )  # fmt: skip
    assert b"milliseconds of a call" not in done.stderr


def test_end_of_input_finishes_what_was_asked_for(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "p.bin"
    path.write_bytes(to_bytes([1, 2, 3]))
    daemon = start(mux=False)
    daemon.send(*[f"{path} 20"] * 3)
    daemon.close_input()
    for _ in range(3):
        assert len(daemon.tokens_until_end()) <= 20
        assert isinstance(daemon.next_reply(), GenerateOk)
    assert daemon.wait() == 0


def test_quit_stops_now_and_answers_everyone(start: Start) -> None:
    daemon = start("--lanes", "1", "--ctx", "8192")
    daemon.send(gen_line(1, 8000, [1, 2, 3], LONG), gen_line(2, 8000, [1, 2], LONG))
    daemon.next_token()
    daemon.send("quit", "ping never")
    assert {daemon.next_ok().stop for _ in range(2)} == {StopReason.CANCEL}
    assert daemon.next_reply() == PlainOk()
    n_ends = 0
    while n_ends < 2:
        n_ends += isinstance(daemon.next_token(), End)
    assert daemon.wait() == 0
    with pytest.raises(DaemonEnded):
        daemon.next_reply()


def test_sigterm_ends_it_in_order(start: Start) -> None:
    daemon = start("--ctx", "8192")
    daemon.send(gen_line(1, 8000, [1, 2, 3], LONG))
    daemon.next_token()
    daemon.child.send_signal(signal.SIGTERM)
    assert daemon.next_ok().stop is StopReason.CANCEL
    assert daemon.wait() == 0


def small_pipe() -> tuple[int, int]:
    """A pipe that holds one page."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    return reader, writer


def read_all(fd: int) -> bytes:
    data = b""
    while chunk := os.read(fd, 1 << 16):
        data += chunk
    os.close(fd)
    return data


def end_input(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    with suppress(BrokenPipeError):
        child.stdin.close()


@pytest.mark.parametrize("ends_by", ["quit", "SIGTERM"])
def test_the_last_words_reach_a_slow_reader(luced: Path, tiny_model: Path, ends_by: str) -> None:
    reader, writer = small_pipe()
    child = subprocess.Popen([str(luced), "--model", str(tiny_model), *QUICKLY], stdin=subprocess.PIPE, stdout=writer)
    os.close(writer)
    assert child.stdin is not None
    head = os.read(reader, 4096)  # ready: the model is loaded
    child.stdin.write(b"".join(b"ping %d\n" % i for i in range(2000)))
    child.stdin.flush()
    while b"pong 50\n" not in head:  # it has read the pings
        head += os.read(reader, 64)
    if ends_by == "quit":
        child.stdin.write(b"quit\n")
        child.stdin.flush()
    else:
        child.send_signal(signal.SIGTERM)
    replies = (head + read_all(reader)).splitlines()
    assert replies[-1] == b"ok"
    n_pongs = len(replies) - 2
    assert replies[1:-1] == [b"pong %d" % i for i in range(n_pongs)]
    assert n_pongs == 2000 or ends_by == "SIGTERM"  # a signal may come before the last pings are read
    assert child.wait(ENDS_WITHIN_S) == 0
    end_input(child)


def test_a_terminal_that_nobody_reads_stalls_nothing(luced: Path, tiny_model: Path) -> None:
    master, slave = os.openpty()
    token_reader, token_writer = os.pipe()
    child = subprocess.Popen(
        [str(luced), "--model", str(tiny_model), *QUICKLY, "--mux", "--stream-fd", str(token_writer)],
        stdin=subprocess.PIPE, stdout=slave, pass_fds=(token_writer,),
    )  # fmt: skip
    os.close(slave)
    os.close(token_writer)
    assert child.stdin is not None
    child.stdin.write(b"ping word\n" * 3000 + b"gen id=1 n=3 prompt=1,2\n")
    child.stdin.flush()
    tokens = b""
    while len(tokens) < 4 * 8:
        assert select.select([token_reader], [], [], ENDS_WITHIN_S)[0]
        tokens += os.read(token_reader, 1 << 16)
    child.send_signal(signal.SIGTERM)
    assert child.wait(ENDS_WITHIN_S) == 0
    end_input(child)
    os.close(master)
    os.close(token_reader)


def test_a_log_that_nobody_reads_stalls_nothing(luced: Path, tiny_model: Path) -> None:
    log_reader, log_writer = small_pipe()
    child = subprocess.Popen(
        [str(luced), "--model", str(tiny_model), *QUICKLY, "--log-level", "debug"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log_writer,
    )  # fmt: skip
    os.close(log_writer)
    out, _ = child.communicate(b"gen id=1 n=1 prompt=1 grammar=" + b"x" * 100_000 + b"\nping end\n", ENDS_WITHIN_S)
    assert out.splitlines()[-1] == b"pong end"
    assert child.returncode == 0
    os.close(log_reader)


@pytest.mark.parametrize(("closed", "status"), [("<&-", 0), ("2>&-", 0), (">&-", 64)])
def test_closed_standard_descriptors(luced: Path, tiny_model: Path, closed: str, status: int) -> None:
    done = subprocess.run(
        ["bash", "-c", f'"$0" --model "$1" {closed}', str(luced), str(tiny_model)],
        stdin=subprocess.DEVNULL, capture_output=True, timeout=ENDS_WITHIN_S, check=False,
    )  # fmt: skip
    assert done.returncode == status
    assert done.stdout.startswith(b"[daemon] ready") or status == 64


def test_a_closed_token_fd_ends_its_generations_and_not_the_daemon(start: Start, tmp_path: Path) -> None:
    daemon = start("--ctx", "8192")
    daemon.send(gen_line(1, 8000, [1, 2, 3], LONG))
    daemon.next_token()
    daemon.close_tokens()
    assert daemon.next_ok().stop is StopReason.CANCEL
    daemon.send("ping alive", gen_line(2, 4, [1]))
    assert daemon.next_reply() == Pong("alive")
    reply = daemon.next_reply()
    assert isinstance(reply, Err)
    assert reply.code is ErrorCode.NO_STREAM_FD
    source = tmp_path / "in.bin"
    source.write_bytes(to_bytes([3, 1, 2, 3]))
    daemon.send(f"generate {source} 4 {tmp_path / 'out.bin'}")
    assert daemon.next_ok().n_generated == 4


def test_a_full_disk_under_the_token_fd_is_an_error(luced: Path, tiny_model: Path) -> None:
    with open("/dev/full", "wb") as full:
        child = subprocess.Popen(
            [str(luced), "--model", str(tiny_model), *QUICKLY, "--stream-fd", str(full.fileno())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(full.fileno(),),
        )  # fmt: skip
    out, _ = child.communicate(b"gen id=1 n=20 prompt=1,2\nping alive\n", ENDS_WITHIN_S)
    replies = [parse_reply(line) for line in out.splitlines()[1:]]
    errors = [reply for reply in replies if isinstance(reply, Err)]
    assert [(error.id, error.code) for error in errors] == [(1, ErrorCode.IO_ERROR)]
    assert "No space left" in errors[0].text
    assert Pong("alive") in replies
    assert child.returncode == 0


def let_poll_fail(daemon: DaemonDriver, above: int) -> None:
    """poll() refuses more entries than a process may have files, with EINVAL."""
    _, most = resource.prlimit(daemon.child.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.child.pid, resource.RLIMIT_NOFILE, (above, most))


def test_a_wait_for_commands_that_fails_ends_the_daemon(start: Start) -> None:
    daemon = start()
    let_poll_fail(daemon, above=4)
    daemon.send("ping wakes-it")
    assert daemon.wait() == 0


def test_a_wait_for_readers_that_fails_ends_the_daemon(start: Start) -> None:
    daemon = start()
    daemon.send_bytes(b"ping " + b"x" * (1 << 20) + b"\n")
    daemon.close_input()
    os.read(daemon._stdout_fd, 1 << 12)
    let_poll_fail(daemon, above=1)
    os.read(daemon._stdout_fd, 1 << 16)
    assert daemon.wait() == 0


@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_what_is_printed_gets_there_or_is_an_error(luced: Path, flag: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([str(luced), flag], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert b"No space left on device" in done.stderr


def test_a_pool_alone_bounds_the_context(start: Start) -> None:
    daemon = start("--pool", "300")
    assert dict(daemon.ready.fields)["ctx"] == "300"
    ok = daemon.generate([1, 2, 3], 1000, LONG).reply
    assert isinstance(ok, GenerateOk)
    assert ok.n_generated == 297


def test_without_any_reader_it_exits(start: Start) -> None:
    daemon = start("--ctx", "8192")
    daemon.send(gen_line(1, 8000, [1, 2, 3], LONG))
    daemon.next_token()
    daemon.close_tokens()
    daemon.close_replies()
    assert daemon.wait(ENDS_WITHIN_S) == 0


def test_a_slow_reader_stalls_nobody_and_loses_nothing(start: Start) -> None:
    daemon = start("--ctx", "2048", "--lanes", "8", "--pool", "16384")
    # Far more than the pipe holds is generated before the first token is read.
    daemon.shrink_token_pipe()
    n, rounds = 200, 8
    for i in range(rounds):
        daemon.send(gen_line(i, n, [1, 2, 3], LONG))
    oks = [daemon.next_ok() for _ in range(rounds)]
    assert all(ok.n_generated == n for ok in oks)
    n_of_id = dict.fromkeys(range(rounds), 0)
    n_ends = 0
    while n_ends < rounds:
        event = daemon.next_token()
        n_ends += isinstance(event, End)
        n_of_id[event.id] += not isinstance(event, End)
    assert set(n_of_id.values()) == {n}


PARENT = """
import subprocess, sys
child = subprocess.Popen([{luced!r}, "--model", {model!r}, "--die-with-parent", "--ctx", "8192"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(child.pid, flush=True)
print(child.stdout.readline().decode(), flush=True)
sys.stdin.read()
"""


def test_kill_minus_nine_of_the_parent_leaves_no_daemon(luced: Path, tiny_model: Path) -> None:
    code = PARENT.format(luced=str(luced), model=str(tiny_model))
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert b"ready" in parent.stdout.readline()
    child = os.pidfd_open(pid)
    parent.send_signal(signal.SIGKILL)
    parent.communicate(timeout=ENDS_WITHIN_S)
    deadline = time.monotonic() + ENDS_WITHIN_S
    ended, _, _ = select.select([child], [], [], max(0.0, deadline - time.monotonic()))
    os.close(child)
    assert ended


def test_stop_while_loading_is_an_answer(luced: Path, tiny_model: Path) -> None:
    child = subprocess.Popen(
        [str(luced), "--model", str(tiny_model), *QUICKLY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    child.send_signal(signal.SIGTERM)
    out, _ = child.communicate(timeout=ENDS_WITHIN_S)
    # The signal comes before its handler is set (killed), while it loads (2), or after that (0): never a hang.
    assert child.returncode in (-signal.SIGTERM, 2, 0)
    assert child.returncode != 2 or out.startswith(b"err start_failed ")
