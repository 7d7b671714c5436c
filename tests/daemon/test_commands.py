"""Every command gets its one reply and every accepted request its one sentinel, whatever the command says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from luce.protocol import Cancelled, End, Err, ErrorCode, GenerateOk, Pong, StatusLine, StopReason
from tests.conftest import GoldenCase
from tests.daemon.conftest import Start
from tests.daemon_driver import DaemonDriver, gen_line, to_bytes


def expect_error(daemon: DaemonDriver, line: str, code: ErrorCode, *, sentinel: bool) -> Err:
    """The command is refused, and the next one works."""
    daemon.send(line)
    if sentinel:
        assert isinstance(daemon.next_token(), End)
    reply = daemon.next_reply()
    assert isinstance(reply, Err), reply
    assert reply.code is code, reply
    daemon.send("ping still-there")
    assert daemon.next_reply() == Pong("still-there")
    return reply


@pytest.fixture
def prompt_file(tmp_path: Path, golden: list[GoldenCase]) -> Path:
    path = tmp_path / "prompt.bin"
    path.write_bytes(to_bytes(golden[3].prompt_ids))
    return path


def test_bad_prompts_and_paths(start: Start, tmp_path: Path, prompt_file: Path) -> None:
    files = {
        "odd.bin": b"\1\0\0\0\2",
        "empty.bin": b"",
        "outside.bin": to_bytes([1, 8192]),
        "long.bin": b"\1\0\0\0" * 600,
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "negative.bin").write_bytes(to_bytes([1, -5]))
    daemon = start("--ctx", "512", mux=False)
    for name, code in [
        ("missing.bin", ErrorCode.NO_SUCH_FILE),
        ("odd.bin", ErrorCode.BAD_PROMPT_FILE),
        ("empty.bin", ErrorCode.EMPTY_PROMPT),
        ("outside.bin", ErrorCode.TOKEN_OUT_OF_RANGE),
        ("negative.bin", ErrorCode.TOKEN_OUT_OF_RANGE),
        ("long.bin", ErrorCode.PROMPT_TOO_LONG),
        ("fifo", ErrorCode.BAD_PROMPT_FILE),
        (".", ErrorCode.BAD_PROMPT_FILE),
    ]:
        expect_error(daemon, f"{tmp_path / name} 4", code, sentinel=True)
    expect_error(daemon, f"{prompt_file} -1", ErrorCode.BAD_ARGS, sentinel=True)
    daemon.send(f"{prompt_file} 4")
    assert len(daemon.tokens_until_end()) == 4
    assert daemon.next_ok().n_generated == 4


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("gen id=7 n=4 prompt=", ErrorCode.EMPTY_PROMPT),
        ("gen id=7 n=4 prompt=1,8192", ErrorCode.TOKEN_OUT_OF_RANGE),
        ("gen id=7 n=4 prompt=1 logit_bias=9000:1", ErrorCode.TOKEN_OUT_OF_RANGE),
        ("gen id=7 n=4 prompt=1 generated=2", ErrorCode.BAD_ARGS),
        ("gen id=7 n=4 prompt=1 grammar=root%20%3A%3A%3D%20undefined", ErrorCode.BAD_GRAMMAR),
        ("gen id=7 n=4 prompt=1 grammar=@/nonexistent.gbnf", ErrorCode.NO_SUCH_FILE),
        ("gen id=7 n=4 prompt=1 snap=2:0", ErrorCode.BAD_ARGS),
        ("gen id=7 n=4 prompt=1 restore=0", ErrorCode.EMPTY_SLOT),
        ("gen id=7 n=4 prompt=@/nonexistent.bin", ErrorCode.NO_SUCH_FILE),
        (f"gen id=7 n=4 prompt={','.join(['1'] * 600)}", ErrorCode.PROMPT_TOO_LONG),
        (
            "gen id=7 n=4 prompt=1 grammar=root%20%3A%3A%3D%20%22x%22 grammar_lazy=1 triggers=pattern:%5B",
            ErrorCode.BAD_GRAMMAR,
        ),
    ],
)
def test_a_refused_request_that_owns_its_id_ends_with_a_sentinel(start: Start, line: str, code: ErrorCode) -> None:
    daemon = start("--ctx", "512")
    assert (
        expect_error(daemon, line, code, sentinel=line.count("prompt=,") == 0 and code is not ErrorCode.EMPTY_PROMPT).id
        == 7
    )
    assert daemon.generate([1, 2, 3], 3, request_id=7).reply is not None


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("bogus", ErrorCode.UNKNOWN_COMMAND),
        ("SNAPSHOT 0", ErrorCode.UNKNOWN_ID),
        ("SNAPSHOT", ErrorCode.BAD_ARGS),
        ("LIST_SLOTS 1", ErrorCode.BAD_ARGS),
        ("park draft", ErrorCode.NO_DRAFT),
        ("gen id=7 n=x prompt=1", ErrorCode.BAD_ARGS),
        ("gen id=7 n=4 prompt=1 n=5", ErrorCode.BAD_ARGS),
        ("gen id=7 n=4 prompt=1 colour=red", ErrorCode.BAD_ARGS),
        ("gen id=7 n=-4 prompt=1", ErrorCode.BAD_ARGS),
        ("gen id=7 n=4 prompt=1 temp=nan", ErrorCode.BAD_ARGS),
        ("cancel id=12345", ErrorCode.UNKNOWN_ID),
    ],
)
def test_a_line_that_is_no_request_gets_an_error_and_no_sentinel(start: Start, line: str, code: ErrorCode) -> None:
    daemon = start()
    expect_error(daemon, line, code, sentinel=False)
    answer = daemon.generate([1, 2, 3], 3)
    assert len(answer.tokens) == 3


def test_a_line_over_the_limit_is_swallowed_and_answered(start: Start) -> None:
    daemon = start()
    daemon.send_bytes(b"gen id=1 n=1 prompt=" + b"1," * (9 << 20) + b"1\n")
    reply = daemon.next_reply()
    assert isinstance(reply, Err)
    assert reply.code is ErrorCode.LINE_TOO_LONG
    assert len(daemon.generate([1], 2).tokens) == 2


def test_file_form_writes_a_counted_file_and_streams_nothing(
    start: Start, tmp_path: Path, golden: list[GoldenCase]
) -> None:
    case = golden[3]
    source, out = tmp_path / "in.bin", tmp_path / "out.bin"
    source.write_bytes(to_bytes([len(case.prompt_ids), *case.prompt_ids]))
    daemon = start(mux=False)
    daemon.send(f"generate {source} 64 {out}")
    assert daemon.tokens_until_end() == []
    ok = daemon.next_ok()
    assert ok.output_path == str(out)
    assert out.read_bytes() == to_bytes([len(case.tokens), *case.tokens])

    source.write_bytes(to_bytes([5, 1, 2, 3]))
    expect_error(daemon, f"generate {source} 4 {out}", ErrorCode.BAD_PROMPT_FILE, sentinel=True)
    source.write_bytes(to_bytes([3, 1, 2, 3]))
    expect_error(daemon, f"generate {source} 4 /nonexistent/out.bin", ErrorCode.IO_ERROR, sentinel=True)


def test_file_form_needs_no_token_fd(start: Start, tmp_path: Path) -> None:
    source, out = tmp_path / "in.bin", tmp_path / "out.bin"
    source.write_bytes(to_bytes([3, 1, 2, 3]))
    daemon = start(mux=False, stream=False)
    daemon.send(f"generate {source} 4 {out}", f"{source} 4", "gen id=3 n=1 prompt=1")
    assert isinstance(daemon.next_reply(), GenerateOk)
    for _ in range(2):
        reply = daemon.next_reply()
        assert isinstance(reply, Err)
        assert reply.code is ErrorCode.NO_STREAM_FD


def test_zero_tokens_prefills_only(start: Start) -> None:
    answer = start().generate([1, 2, 3], 0)
    assert answer.tokens == []
    assert isinstance(answer.reply, GenerateOk)
    assert (answer.reply.n_prompt, answer.reply.n_generated) == (3, 0)


def test_plain_commands_are_answered_in_order(start: Start, prompt_file: Path) -> None:
    daemon = start(mux=False)
    daemon.send(f"{prompt_file} 5", "/nonexistent 4", "bogus", f"{prompt_file} 3", "gen id=9 n=2 prompt=1,2")
    assert [len(daemon.tokens_until_end()) for _ in range(4)] == [5, 0, 3, 2]
    replies = [daemon.next_reply() for _ in range(5)]
    kinds = [reply.code if isinstance(reply, Err) else "ok" for reply in replies]
    assert kinds == ["ok", ErrorCode.NO_SUCH_FILE, ErrorCode.UNKNOWN_COMMAND, "ok", "ok"]
    assert isinstance(replies[4], GenerateOk)
    assert replies[4].id == 9


def test_ping_status_and_cancel_are_answered_while_generating(start: Start) -> None:
    daemon = start("--ctx", "8192")
    daemon.send(gen_line(5, 8000, [1, 2, 3], "ignore_eos=1"))
    daemon.next_token()
    daemon.send("ping now", "status id=3")
    assert daemon.next_reply() == Pong("now")
    status = daemon.next_reply()
    assert isinstance(status, StatusLine)
    assert dict(status.fields)["lanes_busy"] == "1"
    assert dict(status.fields)["id"] == "3"
    daemon.send("cancel id=5")
    assert daemon.next_reply() == Cancelled(5)
    ok = daemon.next_ok()
    assert ok.stop is StopReason.CANCEL
    assert 1 <= ok.n_generated < 8000
    assert 1 + len(daemon.tokens_until_end()) == ok.n_generated


def test_an_id_is_taken_until_its_request_ends(start: Start) -> None:
    daemon = start("--ctx", "8192")
    daemon.send(gen_line(5, 8000, [1, 2, 3], "ignore_eos=1"), gen_line(5, 1, [1]))
    reply = daemon.next_reply()
    assert isinstance(reply, Err)
    assert (reply.code, reply.id) == (ErrorCode.DUPLICATE_ID, 5)
    daemon.send("cancel id=5")
    assert daemon.next_reply() == Cancelled(5)
    assert daemon.next_ok().stop is StopReason.CANCEL
    daemon.tokens_until_end()  # exactly one sentinel: the next answer starts clean
    assert len(daemon.generate([1, 2], 4, request_id=5).tokens) == 4


def test_a_full_queue_refuses_and_loses_nothing(start: Start) -> None:
    daemon = start("--lanes", "1", "--queue", "2", "--ctx", "8192")
    daemon.send(gen_line(1, 8000, [1, 2, 3], "ignore_eos=1"))
    daemon.next_token()  # it has its lane
    daemon.send(gen_line(2, 2, [1]), gen_line(3, 2, [1]), gen_line(4, 2, [1]))
    reply = daemon.next_reply()
    assert isinstance(reply, Err)
    assert (reply.code, reply.id) == (ErrorCode.QUEUE_FULL, 4)
    daemon.send("cancel id=1")
    assert daemon.next_reply() == Cancelled(1)
    assert {daemon.next_ok().id for _ in range(3)} == {1, 2, 3}
    n_of_id: dict[int, int] = {}
    n_ends = 0
    while n_ends < 4:
        event = daemon.next_token()
        n_ends += isinstance(event, End)
        n_of_id[event.id] = n_of_id.get(event.id, 0) + (not isinstance(event, End))
    assert (n_of_id[2], n_of_id[3], n_of_id[4]) == (2, 2, 0)


def test_cancelling_a_waiting_request_ends_only_that_one(start: Start) -> None:
    daemon = start("--lanes", "1", "--ctx", "2048")
    daemon.send(gen_line(1, 50, [1, 2, 3], "ignore_eos=1"), gen_line(2, 5, [1]), gen_line(3, 5, [1]), "cancel id=2")
    answers = {}
    for _ in range(4):
        reply = daemon.next_reply()
        if isinstance(reply, GenerateOk):
            answers[reply.id] = reply
        else:
            assert reply == Cancelled(2)
    assert answers[2].stop is StopReason.CANCEL
    assert answers[2].n_generated == 0
    assert answers[1].n_generated == 50
    assert answers[3].n_generated == 5


def test_higher_priority_overtakes_in_the_queue(start: Start) -> None:
    daemon = start("--lanes", "1", "--ctx", "8192")
    daemon.send(gen_line(1, 8000, [1, 2, 3], "ignore_eos=1"))
    daemon.next_token()
    daemon.send(gen_line(2, 1, [1]), gen_line(3, 1, [1], "priority=1"), "cancel id=1")
    assert daemon.next_reply() == Cancelled(1)
    assert [daemon.next_ok().id for _ in range(3)] == [1, 3, 2]


def test_positional_commands_in_the_multiplexed_dialect_are_request_zero(start: Start, prompt_file: Path) -> None:
    daemon = start()
    daemon.send(f"{prompt_file} 3", f"{prompt_file} 2", gen_line(4, 6, [1, 2]))
    n_of_id = {0: 0, 4: 0}
    n_ends = 0
    while n_ends < 3:
        event = daemon.next_token()
        n_ends += isinstance(event, End)
        n_of_id[event.id] += not isinstance(event, End)
    assert n_of_id == {0: 5, 4: 6}
    assert sorted(str(daemon.next_ok().id) for _ in range(3)) == ["4", "None", "None"]


def test_a_text_ends_at_the_context(start: Start) -> None:
    answer = start("--ctx", "256").generate([5] * 250, 100, "ignore_eos=1")
    assert isinstance(answer.reply, GenerateOk)
    assert (answer.reply.n_generated, answer.reply.stop) == (6, StopReason.LIMIT)
