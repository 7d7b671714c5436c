"""`luce chat` in a terminal: its editor, what it shows, and how it ends."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import TIMEOUT_S
from tests.cli.pseudo_terminal import EDITS, ROWS, Terminal, in_terminal
from tests.cli.scripted_server import end, forever, scripted, text

UP, ALT_ENTER, CTRL_C, CTRL_D = "\x1b[A", "\x1b\r", "\x03", "\x04"
Start = Callable[..., AbstractContextManager[Terminal]]


@pytest.fixture
def terminal(bin_dir: Path, tmp_path: Path) -> Start:
    """with terminal("--url", url) as it: …"""

    def start(*arguments: str) -> AbstractContextManager[Terminal]:
        return in_terminal([str(bin_dir / "luce"), "chat", *arguments], {"XDG_STATE_HOME": str(tmp_path / "state")})

    return start


def test_ctrl_c_stops_the_answer_and_not_the_chat(terminal: Start) -> None:
    with scripted(forever("word "), [text("Again."), *end()]) as server, terminal("--url", server.url) as it:
        it.wait_for(b"scripted at")
        it.wait_for(EDITS)
        it.type("Go on\r")
        it.wait_for(b"word word")
        it.popen.send_signal(signal.SIGINT)
        it.wait_for(b"(stopped)")
        assert server.gone.wait(TIMEOUT_S), "the server was not left"
        it.wait_for(EDITS)
        it.type("And now?\r")
        it.wait_for(b"Again.")
        it.wait_for(EDITS)
        said = server.asked[1]["messages"]
        assert [message["role"] for message in said] == ["user", "assistant", "user"]
        assert said[1]["content"].startswith("word word")
        it.type(f"half a line{CTRL_C}")
        it.wait_for(b"Ctrl-D or /quit leaves")
        it.wait_for(EDITS)
        it.type("/quit\r")
        assert it.wait_for_end() == 0
        assert it.is_as_before


def test_a_signal_in_the_middle_of_an_answer_leaves_the_terminal_as_it_was(terminal: Start) -> None:
    with scripted(forever("word ")) as server, terminal("--url", server.url) as it:
        it.wait_for(EDITS)
        it.type("Go on\r")
        it.wait_for(b"word word")
        it.popen.send_signal(signal.SIGTERM)
        it.wait_for(b"\x1b[?25h")  # the cursor
        assert it.wait_for_end() == 128 + signal.SIGTERM
        assert it.is_as_before


def test_a_message_of_several_lines(terminal: Start) -> None:
    with scripted([text("ok"), *end()], [text("ok"), *end()]) as server, terminal("--url", server.url) as it:
        it.wait_for(EDITS)
        it.type(f"one{ALT_ENTER}two\\\rthree\r")
        it.wait_for(b"[3 tokens")
        it.wait_for(EDITS)
        it.type("\x1b[200~pasted:\n  x\n\x1b[201~end\r")
        it.wait_for(b"[3 tokens")
        first, _, second = server.asked[1]["messages"]
        assert (first["content"], second["content"]) == ("one\ntwo\nthree", "pasted:\n  x\nend")


def test_what_was_typed_comes_back_in_the_next_chat(terminal: Start, tmp_path: Path) -> None:
    with scripted([text("ok"), *end()], [text("ok"), *end()]) as server:
        with terminal("--url", server.url) as it:
            it.wait_for(EDITS)
            it.type(f"a secret{ALT_ENTER}plan\r")
            it.wait_for(b"[3 tokens")
            it.wait_for(EDITS)
            it.type(CTRL_D)
            assert it.wait_for_end() == 0
        with terminal("--url", server.url) as it:
            it.wait_for(EDITS)
            it.type(f"{UP}\r")
            it.wait_for(b"[3 tokens")
        assert server.asked[0]["messages"] == server.asked[1]["messages"]
    file = tmp_path / "state" / "luce-daemon" / "chat_history"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_no_history_is_kept_where_none_is_wanted_or_can_be(terminal: Start, tmp_path: Path) -> None:
    with scripted() as server:
        with terminal("--url", server.url, "--history", "/dev/null") as it:
            it.wait_for(EDITS)
        with terminal("--url", server.url, "--history", "/proc/no/such") as it:
            it.wait_for(b"is not kept for another time: /proc/no")
            it.wait_for(EDITS)
    assert not (tmp_path / "state").exists()


def test_tab_completes_commands_branches_and_files(terminal: Start, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Buy milk.")
    with scripted() as server, terminal("--url", server.url) as it:
        it.wait_for(EDITS)
        it.type("/bra")
        it.wait_for(b"show the branches")  # what can be chosen is offered
        it.type("\t feature\r")
        it.wait_for(b"(a new branch feature, 0 turns so far)")
        it.wait_for(EDITS)
        it.type("/branch ma")
        it.wait_for(b" main ")
        it.type("\t\r")
        it.wait_for(b"(the branch main, 0 turns so far)")
        it.wait_for(EDITS)
        it.type(f"/file {tmp_path}/no")
        it.wait_for(b" notes.txt ")
        it.type("\t\r")
        it.wait_for(b"(notes.txt, 9 characters, goes with your next message)")


def test_an_answer_is_laid_out_unless_asked_otherwise(terminal: Start) -> None:
    code = "".join(f"line_{number} = 0\n" for number in range(3 * ROWS))
    answer = [*map(text, f"Some **bold** text.\n\n```python\n{code}```\n\nDone."), *end()]
    with scripted(answer, answer) as server:
        with terminal("--url", server.url) as it:
            it.wait_for(EDITS)
            it.type("Hi\r")
            it.wait_for(b"\x1b[1mbold\x1b[0m")
            shown = it.wait_for(b"Done.")
            assert all(b"line_%d" % number in shown for number in range(3 * ROWS))
            assert b"```" not in shown
        with terminal("--url", server.url, "--no-markdown") as it:
            it.wait_for(EDITS)
            it.type("Hi\r")
            it.wait_for(b"**bold**")
            it.wait_for(b"```python")


def test_what_a_model_writes_is_no_command_to_the_terminal(terminal: Start) -> None:
    answer = [
        {"index": 0, "delta": {"reasoning_content": "think"}},
        text("a\x1b]0;owned\x07b [here](javascript:x)"),
        *end(),
    ]
    with scripted(answer) as server, terminal("--url", server.url) as it:
        it.wait_for(EDITS)
        it.type("Hi\r")
        it.wait_for(b"\x1b[2mthink\x1b[0m")
        it.wait_for("a␛]0;owned␇b".encode())
        assert b"\x1b]8" not in it.wait_for(EDITS), "a link that hides where it leads"
        it.type(CTRL_D)
        assert it.wait_for_end() == 0


def test_where_no_server_answers_one_can_be_had_and_ends_with_the_chat(terminal: Start) -> None:
    with terminal("--url", "http://127.0.0.1:9") as it:
        it.wait_for(b"there is no server at http://127.0.0.1:9")
        it.wait_for(b"[Y/n]")
        it.type("\n")
        it.wait_for(b"luce-tiny-Q8_0 at")
        it.wait_for(EDITS)
        engines = [child for child in psutil.Process(it.popen.pid).children(recursive=True) if child.name() == "luced"]
        assert len(engines) == 1
        it.popen.send_signal(signal.SIGTERM)
        assert it.wait_for_end() == 128 + signal.SIGTERM
        assert not engines[0].is_running()
        assert it.is_as_before


def test_who_wants_no_server_is_told_how_to_get_another(terminal: Start) -> None:
    with terminal("--url", "http://127.0.0.1:9") as it:
        it.wait_for(b"[Y/n]")
        it.type("n\n")
        it.wait_for(b"luce chat --model FILE")
        assert it.wait_for_end() == 1
