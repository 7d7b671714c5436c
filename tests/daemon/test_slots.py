"""Slots: what the commands say, what a slot keeps, and what it costs."""

from __future__ import annotations

from pathlib import Path

from luce.protocol import (
    Cancelled,
    Err,
    ErrorCode,
    GenerateOk,
    InlineSnapshotFailed,
    PlainOk,
    Reply,
    SlotSaved,
    SnapshotTaken,
    StopReason,
)
from tests.daemon.conftest import Start
from tests.daemon_driver import DaemonDriver, gen_line, random_prompt, to_bytes


def code_of(reply: Reply) -> ErrorCode | str:
    assert isinstance(reply, Err), reply
    return reply.code


def ask(daemon: DaemonDriver, line: str) -> Reply:
    daemon.send(line)
    return daemon.next_reply()


def test_a_command_cancelled_before_its_turn_tells_of_its_snapshots(start: Start) -> None:
    daemon = start("--ctx", "8192", mux=False)
    daemon.send(gen_line(1, 8000, [1, 2, 3], "ignore_eos=1"), gen_line(2, 5, [1, 2, 3, 4], "snap=2:1,4:3"))
    daemon.next_token()
    daemon.send("cancel id=2", "cancel id=1")
    assert daemon.next_reply() == Cancelled(2)
    assert daemon.next_reply() == Cancelled(1)
    assert daemon.next_ok().id == 1
    told = [daemon.next_reply() for _ in range(2)]
    assert told == [InlineSnapshotFailed(slot, ErrorCode.CANCELLED, id=2) for slot in (1, 3)]
    ok = daemon.next_ok()
    assert (ok.id, ok.stop) == (2, StopReason.CANCEL)


def test_quit_is_answered_last_even_when_a_file_is_being_written(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "p.bin"
    path.write_bytes(to_bytes(random_prompt(100)))
    daemon = start(mux=False)
    daemon.send(f"{path} 1")
    daemon.tokens_until_end()
    daemon.next_ok()
    daemon.send("SNAPSHOT 0", f"SAVE 0 {tmp_path / 's.snap'}", f"{path} 5", "FREE_SNAPSHOT 5", "quit")
    replies = [daemon.next_reply() for _ in range(5)]
    assert isinstance(replies[0], SnapshotTaken)
    assert isinstance(replies[1], SlotSaved)
    assert isinstance(replies[2], GenerateOk)
    assert code_of(replies[3]) is ErrorCode.EMPTY_SLOT
    assert replies[4] == PlainOk()
    assert daemon.wait() == 0
