"""`luce chat`: over pipes and in a terminal, with a real server, an engine of its own, and servers with a script."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from luce.supervisor.cli.chat_conversation import Conversation, NotAConversationError
from luce.supervisor.cli.chat_terminal import figures, safe
from luce.supervisor.cli.server_client import Answer, ToolCall, server_url
from tests.cli.conftest import TIMEOUT_S, Run
from tests.cli.scripted_server import end, forever, scripted, text
from tests.http.serving import Server

CALL = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": '{"city":'}}
REST_OF_CALL = {"index": 0, "function": {"arguments": ' "Rome"}'}}
PROMPT = b">\x1b[0m "  # of an editor that waits
Start = Callable[..., AbstractContextManager["Terminal"]]
Chat = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Server]:
    running = Server(tiny_model, {"api_keys": ("secret",), "ctx": 1024, "pool": 2048, "lanes": 2})
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def chat(run: Run) -> Chat:
    """chat(server, "line", …, options=[…]): what a conversation over pipes gives."""

    def talk(
        url: str, *lines: str, options: list[str] | None = None, key: str = "secret"
    ) -> subprocess.CompletedProcess[bytes]:
        environment = {**os.environ, "LUCE_API_KEY": key}
        typed = "".join(line + "\n" for line in lines).encode()
        return run("luce", "chat", "--url", url, *(options or []), input=typed, env=environment)

    return talk


# With a real engine


def test_a_turn_a_line_and_the_cache_serves_the_second(chat: Chat, server: Server) -> None:
    options = ["--temp", "0", "-n", "40"]
    result = chat(server.url, "Who are you?", "", "What is 7 + 5?", options=options, key="secret, another")
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.decode().splitlines()
    assert "Luce" in first
    assert "12" in second
    told = [line for line in result.stderr.decode().splitlines() if line.startswith("[")]
    assert len(told) == 2
    n_cached = re.search(r"prompt \d+, (\d+) from the cache", told[1])
    assert n_cached is not None
    assert int(n_cached[1]) > 0


def test_an_engine_of_its_own(run: Run) -> None:
    result = run("luce", "chat", "--threads", "1", "--ctx", "512", "--temp", "0", "-n", "30", input=b"Who are you?\n")
    assert result.returncode == 0, result.stderr
    assert b"Luce" in result.stdout


def test_the_key_has_to_be_right(chat: Chat, server: Server) -> None:
    result = chat(server.url, "Hello", key="wrong")
    assert (result.returncode, result.stdout) == (1, b"")
    assert b"LUCE_API_KEY" in result.stderr


def test_a_conversation_is_saved_and_loaded(chat: Chat, server: Server, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    options = ["--temp", "0", "-n", "40", "--system", "Be kind."]
    saved = chat(server.url, "Who are you?", f"/save {file}", options=options)
    assert saved.returncode == 0, saved.stderr
    messages = json.loads(file.read_text())["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant"]
    again = tmp_path / "again.json"
    loaded = chat(server.url, f"/load {file}", "/retry", f"/save {again}", options=["--temp", "0", "-n", "40"])
    assert loaded.returncode == 0, loaded.stderr
    assert json.loads(again.read_text())["messages"] == messages


# By script


def test_reasoning_goes_beside_the_answer_and_into_the_next_turn(chat: Chat) -> None:
    first = [{"index": 0, "delta": {"reasoning_content": "Hmm. "}}, text("Four."), *end()]
    with scripted(first, [text("Yes."), *end()]) as server:
        result = chat(server.url, "2+2?", "Sure?", options=["--temp", "0", "-n", "9", "--system", "S"])
    assert (result.returncode, result.stdout) == (0, b"Four.\nYes.\n")
    assert b"Hmm. " in result.stderr
    assert b"prompt 10, 4 from the cache (40%)" in result.stderr
    assert server.keys == ["Bearer secret"] * 2
    body = server.asked[1]
    assert (body["temperature"], body["max_tokens"], body["stream"]) == (0, 9, True)
    assert body["messages"] == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "Four.", "reasoning_content": "Hmm. "},
        {"role": "user", "content": "Sure?"},
    ]


def test_a_tool_call_is_shown_and_its_result_typed(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text('[{"type": "function", "function": {"name": "weather"}}]')
    call = [{"index": 0, "delta": {"tool_calls": [part]}} for part in (CALL, REST_OF_CALL)]
    with scripted([*call, *end("tool_calls")], [text("It rains."), *end()]) as server:
        result = chat(server.url, "Weather?", "rain", options=["--tools", str(tmp_path / "tools.json")])
    assert result.stdout.decode() == '→ weather({"city": "Rome"})\nIt rains.\n'
    assert server.asked[0]["tools"][0]["function"]["name"] == "weather"
    said, given = server.asked[1]["messages"][1:]
    assert said["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Rome"}'}
    assert given == {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "rain"}


def test_a_call_that_was_cut_off_wants_no_result(chat: Chat) -> None:
    call = [{"index": 0, "delta": {"tool_calls": [CALL]}}]
    with scripted([*call, *end("length")], [text("Again."), *end()]) as server:
        result = chat(server.url, "Weather?", "next")
    assert b"cut off" in result.stderr
    assert server.asked[1]["messages"][-1] == {"role": "user", "content": "next"}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([text("Half")], "the answer broke off"),
        ([text("Half"), "[DONE]"], "the answer broke off"),
        ([text("Half"), '{"error": {"message": "the engine is gone"}}'], "the engine is gone"),
        (["no json"], "what is no chat completion"),
        (["[]"], "what is no chat completion"),
        ((429, '{"error": {"message": "too many wait"}}'), "the server refuses (429): too many wait"),
        ((500, "<html>oh"), "the server refuses (500): <html>oh"),
        ((404, '{"error": "no"}'), "the server refuses (404): no"),
    ],
)
def test_what_is_no_whole_answer_is_an_error(chat: Chat, answer: object, said: str) -> None:
    with scripted(answer, [text("Better."), *end()]) as server:
        result = chat(server.url, "One", "Two")
    assert said in result.stderr.decode()
    assert result.returncode == 1
    assert result.stdout.endswith(b"Better.\n")
    assert server.asked[1]["messages"] == [{"role": "user", "content": "Two"}], "the turn before was not answered"


def test_retry_asks_the_same_again(chat: Chat) -> None:
    with scripted([text("A")], [text("B"), *end()], [text("C"), *end()]) as server:
        result = chat(server.url, "/retry", "One", "/retry", "/retry")
    assert b"nothing to answer yet" in result.stderr
    assert [len(body["messages"]) for body in server.asked] == [1, 1, 1]


def test_commands_that_cannot_be_carried_out_say_why(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"messages": [{"role": "wizard"}]}')
    with scripted() as server:
        lines = ("/load", "/load /no/such", f"/load {tmp_path}/bad.json", "/save /no/such/file", "/dance", "/help")
        result = chat(server.url, *lines)
    said = result.stderr.decode()
    for text_of in ("/load wants a file", "No such file", "message 0 has no role", "no command /dance", "/retry"):
        assert text_of in said
    assert (result.returncode, server.asked) == (1, [])


def test_a_slash_can_be_said(chat: Chat) -> None:
    with scripted([text("ok"), *end()]) as server:
        chat(server.url, "//etc is a folder")
    assert server.asked[0]["messages"][0]["content"] == "/etc is a folder"


def test_no_server_is_said_with_what_to_do(chat: Chat) -> None:
    result = chat("http://127.0.0.1:9", "Hello")
    assert result.returncode == 1
    assert b"luce serve" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--url", "ftp://x"], b"is no address of a server"),
        (["--url", "http://x", "--own"], b"--own starts an engine of its own"),
        (["--url", "http://x", "--ctx", "5"], b"--ctx starts an engine of its own"),
        (["--tools", "/no/such"], b"/no/such"),
    ],
)
def test_arguments_that_do_not_go_together(run: Run, arguments: list[str], said: bytes) -> None:
    result = run("luce", "chat", *arguments, input=b"")
    assert result.returncode == 64
    assert said in b" ".join(result.stderr.split())


# In a terminal


class Terminal:
    """Reads all the time, as terminals do: an editor waits until what it has written is on the screen."""

    def __init__(self, popen: subprocess.Popen[bytes], fd: int) -> None:
        self.popen, self._fd, self._seen = popen, fd, b""
        self._changed = threading.Condition()
        self._pump = threading.Thread(target=self._read)
        self._pump.start()

    def _read(self) -> None:
        with suppress(OSError):  # the other side has closed it
            while data := os.read(self._fd, 1 << 16):
                with self._changed:
                    self._seen += data
                    self._changed.notify()

    def type(self, line: str) -> None:
        os.write(self._fd, line.encode())

    def wait_for(self, wanted: bytes) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: wanted in self._seen, TIMEOUT_S), f"no {wanted!r} in {self._seen!r}"
            self._seen = self._seen.partition(wanted)[2]

    def close(self) -> None:
        self.popen.kill()
        self._pump.join(TIMEOUT_S)
        os.close(self._fd)


@pytest.fixture
def terminal(bin_dir: Path) -> Start:
    @contextmanager
    def start(*arguments: str) -> Iterator[Terminal]:
        master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "xterm"}
        command = [str(bin_dir / "luce"), "chat", *arguments]
        with subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        ) as popen:
            os.close(slave)
            it = Terminal(popen, master)
            try:
                yield it
            finally:
                it.close()

    return start


def test_ctrl_c_stops_the_answer_and_not_the_chat(terminal: Start) -> None:
    with scripted(forever("word "), [text("Again."), *end()]) as server, terminal("--url", server.url) as it:
        it.type("Go on\n")
        it.wait_for(b"word word")
        it.popen.send_signal(signal.SIGINT)
        it.wait_for(b"(stopped)")
        assert server.gone.wait(TIMEOUT_S), "the server was not left"
        it.type("And now?\n")
        it.wait_for(b"Again.")
        it.wait_for(PROMPT)
        said = server.asked[1]["messages"]
        assert [message["role"] for message in said] == ["user", "assistant", "user"]
        assert said[1]["content"].startswith("word word")
        it.popen.send_signal(signal.SIGINT)
        it.wait_for(b"Ctrl-D or /quit leaves")
        it.type("/quit\n")
        assert it.popen.wait(TIMEOUT_S) == 0


def test_what_a_model_writes_is_no_command_to_the_terminal(terminal: Start) -> None:
    answer = [{"index": 0, "delta": {"reasoning_content": "think"}}, text("a\x1b]0;owned\x07b"), *end()]
    with scripted(answer) as server, terminal("--url", server.url) as it:
        it.type("Hi\n")
        it.wait_for(b"\x1b[2mthink\x1b[0m")
        it.wait_for("a␛]0;owned␇b".encode())
        it.wait_for(PROMPT)
        it.type("\x04")
        assert it.popen.wait(TIMEOUT_S) == 0


def test_a_signal_ends_the_chat_and_its_engine(terminal: Start) -> None:
    with terminal("--threads", "1", "--ctx", "512") as it:
        it.wait_for(PROMPT)
        engines = [child for child in psutil.Process(it.popen.pid).children(recursive=True) if child.name() == "luced"]
        assert len(engines) == 1
        it.popen.send_signal(signal.SIGTERM)
        assert it.popen.wait(TIMEOUT_S) == 128 + signal.SIGTERM
        assert not engines[0].is_running()


MISSED = """
import ctypes, functools, readline, signal, sys
from luce.supervisor.cli.chat_terminal import Terminal
signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
# Called between the prompt and the wait for a key. No Python runs behind it that would notice the signal.
readline.set_pre_input_hook(functools.partial(ctypes.PyDLL(None)["raise"], int(signal.SIGTERM)))
Terminal(is_terminal=True).read(">")
"""


def test_a_signal_that_comes_before_readline_waits_is_noticed() -> None:
    master, slave = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", MISSED], stdin=slave, stdout=slave, start_new_session=True) as popen:
        os.close(slave)
        try:
            assert popen.wait(TIMEOUT_S) == 128 + signal.SIGTERM
        finally:
            popen.kill()
            os.close(master)


# Without a process


def test_an_unanswered_turn_is_forgotten() -> None:
    conversation = Conversation("S")
    conversation.say("one")
    conversation.take(Answer("1"))
    conversation.say("two")
    conversation.take(Answer("", calls=[ToolCall("i", "n", "{}")]))
    conversation.give_result(ToolCall("i", "n", "{}"), "r")
    conversation.say("three")
    assert [message["content"] for message in conversation.messages] == ["S", "one", "1", "three"]
    conversation.reset()
    assert conversation.messages == [{"role": "system", "content": "S"}]
    assert not conversation.retry()


@pytest.mark.parametrize("text_of", ["", "{", "{}", "5", '{"messages": 5}', "[5]", '[{"role": 5}]', "[" * 99_999])
def test_what_is_no_conversation_is_refused(text_of: str) -> None:
    with pytest.raises(NotAConversationError):
        Conversation.from_json(text_of)


def test_a_list_of_messages_is_a_conversation_too() -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert Conversation.from_json(json.dumps(messages)).messages == messages


@pytest.mark.parametrize("address", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_the_address_of_a_server(address: str) -> None:
    assert server_url(address) == "http://h:1"


def test_figures_of_other_servers_are_enough() -> None:
    assert figures({}, None, 1.0) == "[0 tokens; prompt 0, none]"
    told = figures({"prompt_tokens": 4, "completion_tokens": 3}, 0.5, 1.5)
    assert told == "[3 tokens, 2 a second, the first after 0.50 s; prompt 4, 0 from the cache (0%)]"


def test_control_characters_become_pictures() -> None:
    assert safe("a\tb\nc\x1bd\x7fe\x9bf\r") == "a\tb\nc␛d\ufffde\ufffdf␍"
