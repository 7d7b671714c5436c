"""Answers are known to a server that was started again over the same disk cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from luce.supervisor.http.answering.answer_log import AnswerLog, LoggedAnswer
from luce.supervisor.http.prompts.token_replay_cache import Turn
from luce.supervisor.text import TextModel
from tests.http.answering.answering_fixtures import READ
from tests.http.serving import CALL_S, Server

Message = dict[str, Any]


def answer(number: int) -> LoggedAnswer:
    turn = Turn(bytes([number]) * 16, b"<|im_start|>\xff\n", (1, 2))
    message = {"role": "assistant", "content": f"\u00e9\ud800 {number}"}
    return LoggedAnswer(turn, [number, 7], "stop" if number % 2 else None, b"place", message)


@pytest.fixture
def model(tiny_model: Path) -> TextModel:
    return TextModel(tiny_model)


def test_what_was_written_is_read_in_its_order(tmp_path: Path, model: TextModel) -> None:
    log = AnswerLog(tmp_path / "new", model, 1 << 20)
    for number in range(5):
        log.append(answer(number))
    log.wait()
    assert list(AnswerLog(tmp_path / "new", model, 1 << 20).read()) == [answer(number) for number in range(5)]
    (path,) = (tmp_path / "new").iterdir()
    assert path.stat().st_mode & 0o077 == 0


def test_damaged_lines_are_passed_over(tmp_path: Path, model: TextModel) -> None:
    log = AnswerLog(tmp_path, model, 1 << 20)
    for number in range(3):
        log.append(answer(number))
    log.wait()
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for at in range(0, len(whole), 13):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert len(list(log.read())) >= 1
        assert all(found in map(answer, range(3)) for found in log.read())
    path.write_bytes(whole[:-9])  # cut off: what comes behind is whole
    log.append(answer(9))
    log.wait()
    assert list(log.read()) == [answer(0), answer(1), answer(9)]


def test_the_oldest_go_when_it_is_full(tmp_path: Path, model: TextModel) -> None:
    n_line = len(answer(1).to_line())
    log = AnswerLog(tmp_path, model, 10 * n_line)
    for number in range(64):
        log.append(answer(number))
    log.wait()
    kept = list(log.read())
    assert kept == [answer(number) for number in range(64 - len(kept), 64)]
    assert 10 <= len(kept) <= 20
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 22 * n_line


def test_a_folder_that_cannot_be_written_ends_nothing(tmp_path: Path, model: TextModel) -> None:
    (tmp_path / "file").write_text("")
    log = AnswerLog(tmp_path / "file", model, 1 << 20)
    log.append(answer(1))
    log.wait()
    assert list(log.read()) == []


def ask(server: Server, messages: list[Message]) -> tuple[Message, dict[str, Any]]:
    choice = {"type": "function", "function": {"name": "read_file"}}
    body = {"messages": messages, "tools": [READ], "tool_choice": choice, "temperature": 0, "max_tokens": 200}
    reply = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=CALL_S)
    reply.raise_for_status()
    found = reply.json()
    return found["choices"][0]["message"], found["usage"]


@pytest.mark.parametrize("family", ["", "qwen3", "gemma4"])
def test_a_conversation_goes_on_after_a_restart(
    tiny_model: Path, test_models: Path, tmp_path: Path, family: str
) -> None:
    """From its own ids, although the client serialises the arguments in its own way."""
    model = test_models / f"{family}.gguf" if family else tiny_model
    options = {"disk_cache": tmp_path / "cache", "lanes": 1}
    messages: list[Message] = [{"role": "user", "content": "Read the file README.md. " * 20}]
    server = Server(model, dict(options)).start()
    try:
        for _ in range(2):
            message, usage = ask(server, messages)
            (call,) = message["tool_calls"]
            call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=3)
            messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": "Text. " * 8}]
    finally:
        server.stop()
    server = Server(model, dict(options)).start()
    try:
        _, after = ask(server, messages)
    finally:
        server.stop()
    n_text = usage["prompt_tokens"] + usage["completion_tokens"]
    assert after["prompt_tokens_details"]["cached_tokens"] >= n_text - 4
