"""`luce chat` over pipes: with a real server, an engine of its own, and servers with a script."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from luce.supervisor.cli.output import safe
from luce.supervisor.cli.server_client import Answer, ToolCall, server_url
from luce.supervisor.cli.terminal.branches import Branches
from luce.supervisor.cli.terminal.conversation import Conversation, NotAConversationError
from luce.supervisor.cli.terminal.miss_words import miss_reason
from luce.supervisor.cli.terminal.screen import figures
from tests.cli.conftest import Run
from tests.cli.scripted_server import end, scripted, text
from tests.http.serving import Server

CALL = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": '{"city":'}}
REST_OF_CALL = {"index": 0, "function": {"arguments": ' "Rome"}'}}
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
    engine = ("--threads", "1", "--no-warmup", "--ctx", "512")
    result = run("luce", "chat", *engine, "--temp", "0", "-n", "30", input=b"Who are you?\n")
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
    assert file.stat().st_mode & 0o777 == 0o600
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
    for text_of in ("wants a file: /load FILE", "No such file", "message 0 has no role", "no command /dance", "/retry"):
        assert text_of in said
    assert (result.returncode, server.asked) == (1, [])


def test_a_slash_can_be_said(chat: Chat) -> None:
    with scripted([text("ok"), *end()]) as server:
        chat(server.url, "//etc is a folder")
    assert server.asked[0]["messages"][0]["content"] == "/etc is a folder"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "unix:/no/such.sock"])
def test_no_server_is_said_before_anything_is_read(run: Run, url: str) -> None:
    read_end, write_end = os.pipe()  # a line that never comes
    try:
        result = run("luce", "chat", "--url", url, stdin=read_end)
    finally:
        os.close(read_end)
        os.close(write_end)
    assert result.returncode == 1
    assert f"no server at {url}".encode() in result.stderr
    assert b"luce serve" in result.stderr
    assert b"--own" in result.stderr


def test_another_program_that_answers_is_told_from_a_server(chat: Chat) -> None:
    with scripted(models="<html>a page</html>") as server:
        result = chat(server.url, "Hello")
    assert (result.returncode, server.asked) == (1, [])
    assert b"is no JSON object" in result.stderr


def test_a_server_that_lists_no_models_will_do(chat: Chat) -> None:
    with scripted([text("ok"), *end()], models=None) as server:
        assert chat(server.url, "Hello").stdout == b"ok\n"
    assert server.asked[0]["model"] == "default"


def test_the_first_of_several_models_is_asked_or_the_one_that_is_named(chat: Chat) -> None:
    listed = json.dumps({"data": [{"id": "big"}, {"id": "small"}]})
    with scripted([text("ok"), *end()], [text("ok"), *end()], models=listed) as server:
        chat(server.url, "Hello")
        assert chat(server.url, "Hello", options=["--name", "small"], key="ключ").stdout == b"ok\n"
    assert [asked["model"] for asked in server.asked] == ["big", "small"]


def test_a_file_goes_with_the_next_message(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "my notes.txt").write_text("Buy milk.")
    with scripted([text("ok"), *end()], [text("ok"), *end()]) as server:
        result = chat(server.url, f"/file {tmp_path}/my notes.txt", "What to buy?", "And then?")
    assert b"(my notes.txt, 9 characters, goes with your next message)" in result.stderr
    first, _, second = server.asked[1]["messages"]
    assert first["content"] == '<file name="my notes.txt">\nBuy milk.\n</file>\n\nWhat to buy?'
    assert second["content"] == "And then?"


def test_what_is_no_text_file_is_not_sent(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(b"ab\xff")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", (8 << 20) + 1)
    os.mkfifo(tmp_path / "pipe")
    with scripted([text("ok"), *end()]) as server:
        names = ("picture", "large", "pipe", "missing", ".")
        result = chat(server.url, *(f"/file {tmp_path / name}" for name in names), "/file", "Hello")
    said = result.stderr.decode()
    for text_of in ("byte 2 is none", "more than the 8,388,608", "it is no file", "No such file", "/file FILE"):
        assert text_of in said
    assert server.asked[0]["messages"] == [{"role": "user", "content": "Hello"}]


def test_a_branch_goes_on_from_any_turn_and_the_way_back_is_kept(chat: Chat) -> None:
    lines = ("One", "Two", "/branch other 1", "Three", "/branch main", "Four", "/branch copy", "/branch")
    with scripted(*([text(f"answer {number}"), *end()] for number in range(4))) as server:
        result = chat(server.url, *lines)
    assert result.returncode == 0, result.stderr
    said = [[message["content"] for message in body["messages"]][::2] for body in server.asked]
    assert said == [["One"], ["One", "Two"], ["One", "Three"], ["One", "Two", "Four"]]
    assert result.stderr.decode().endswith(
        "  main: 3 turns\n  other: 2 turns\n* copy: 3 turns\n    1 One\n    2 Two\n    3 Four\n"
    )


def test_what_both_branches_share_is_not_read_again(chat: Chat, server: Server) -> None:
    lines = ("Who are you?", "What is 7 + 5?", "/branch other 1", "What is 2 + 2?")
    result = chat(server.url, *lines, options=["--temp", "0", "-n", "40"])
    told = [line for line in result.stderr.decode().splitlines() if line.startswith("[")]
    n_cached = re.search(r"prompt \d+, (\d+) from the cache", told[2])
    assert n_cached is not None
    assert int(n_cached[1]) > 12, "the first turn and its answer are in memory"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/branch main 1", "there is a branch main already"),
        ("/branch new 1", "there are 0 turns, not 1"),
        ("/branch new one", "it wants a name, and a number"),
        ("/branch new 1 2", "it wants a name, and a number"),
    ],
)
def test_branches_that_cannot_be_made_say_why(chat: Chat, line: str, said: str) -> None:
    with scripted() as server:
        assert said in chat(server.url, line).stderr.decode()


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


@pytest.mark.parametrize(
    "text_of",
    ["", "{", "{}", "5", '{"messages": 5}', "[5]", '[{"role": 5}]', '[{"role": "user"}]', "[" * 99_999],
)
def test_what_is_no_conversation_is_refused(text_of: str) -> None:
    with pytest.raises(NotAConversationError):
        Conversation.from_json(text_of)


def test_a_fork_and_its_origin_do_not_change_each_other() -> None:
    branches = Branches(Conversation("S"))
    branches.conversation.say("one")
    branches.conversation.take(Answer("1"))
    assert branches.go_to("other", 0)
    branches.conversation.say("two")
    assert not branches.go_to("main")
    assert branches.conversation.turns == ["one"]
    branches.go_to("other")
    assert [message["content"] for message in branches.conversation.messages] == ["S", "two"]


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


def test_why_not_more_came_from_memory_is_said_in_the_words_of_the_window() -> None:
    script = files("luce.supervisor.http.window").joinpath("static", "explain.js").read_text()
    table = re.search(r"const MISSES = \{\n(.*?)\n\};", script, re.DOTALL)
    assert table is not None
    words = dict(re.findall(r'^  (\w+): "(.*)",$', table[1], re.MULTILINE))
    assert len(words) == table[1].count("\n") + 1
    for miss, said in words.items():
        told = figures({"prompt_tokens": 4, "luce": {"cache_miss": miss}}, None, 1.0)
        assert told == f"[0 tokens; prompt 4, 0 from the cache (0%); not more because {said}]"
    assert miss_reason("differs_at:1234") == "first difference at token 1,234"
    assert miss_reason("none") == miss_reason("") == ""
    assert miss_reason("of_a_newer_server:5") == "of_a_newer_server:5"


def test_control_characters_become_pictures() -> None:
    assert safe("a\tb\nc\x1bd\x7fe\x9bf\r") == "a\tb\nc␛d\ufffde\ufffdf␍"
