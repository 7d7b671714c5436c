"""A conversation may end with a message of the assistant's: the answer goes on from it, and is sent back behind it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.http.asking import CHAT, MESSAGES, RESPONSES, answered, in_each_talking_api, question
from tests.http.conversing import GO_ON, HELLO, client, post, refused
from tests.http.serving import Server

__all__ = ["client"]  # a fixture


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_an_answer_behind_one_that_was_begun(client: httpx.Client, path: str) -> None:
    """As its own message, or joined to the beginning that it goes on from."""
    field = "input" if path == RESPONSES else "messages"
    said = [{"role": "assistant", "content": text} for text in ("I am", " Ada.")]
    if path == CHAT:  # as llama-server has it: nobody here wrote the last one
        text, param = refused(client, path, {field: [HELLO, *said]})
        assert (param, "Only one assistant message" in text) == ("messages[2]", True)
    else:
        post(client, path, {field: [HELLO, *said]}, stream=True)
    post(client, path, {field: [HELLO, *said, GO_ON]})


@in_each_talking_api
def test_an_answer_goes_back_behind_the_beginning_that_it_goes_on_from(
    server: Server, path: str, streams: bool
) -> None:
    """Once as the last message, to be gone on from, and once with another question behind it."""
    said: list[dict[str, Any]] = [
        {"role": "user", "content": f"Who goes there? {path} {streams}"},
        {"role": "assistant", "content": "I am"},
    ]
    n_before = 0
    for written in (" Ada.", " I count", " to ten. "):
        asked = question(path, said, grammar=f"root ::= {json.dumps(written)}", limit=40)
        answer = answered(server.url, path, asked, streams=streams)
        assert answer.content == written
        assert path == RESPONSES or answer.n_cached >= n_before - 4, "there a new answer begins each time"
        said.append({"role": "assistant", "content": written})
        n_before = answer.n_prompt
    answer = answered(server.url, path, question(path, [*said, GO_ON], limit=4), streams=streams)
    assert path == RESPONSES or answer.n_cached >= n_before - 4


def test_an_answer_behind_a_beginning_is_joined_to_it(client: httpx.Client) -> None:
    begun = [HELLO, {"role": "assistant", "content": "You called,"}]
    (answer,) = post(client, CHAT, {"messages": begun, "grammar": 'root ::= " I came."'})
    said = [*begun, answer["choices"][0]["message"]]
    for behind in ([], [GO_ON]):
        (shown,) = post(client, CHAT, {"messages": [*said, *behind], "verbose": True})
        assert "You called, I came." in shown["__verbose"]["prompt"]
    # Cut short or changed by the client: taken, as what was given.
    for text in (" I", " I went."):
        begun_and_changed = [*begun, {"role": "assistant", "content": text}]
        for behind in ([], [GO_ON]):
            (shown,) = post(client, CHAT, {"messages": [*begun_and_changed, *behind], "verbose": True})
            assert f"You called,{text}" in shown["__verbose"]["prompt"]
    other = [HELLO, {"role": "assistant", "content": "You rang,"}, said[-1]]
    text, param = refused(client, CHAT, {"messages": other})
    assert (param, "Only one assistant message" in text) == ("messages[2]", True)


@pytest.mark.parametrize("template", ["mistralai-Mistral-Nemo-Instruct-2407", "Qwen3.5-4B"])
def test_an_answer_of_white_space_or_thoughts_goes_back_behind_a_beginning(
    tiny_model: Path, llama_templates_dir: Path, template: str
) -> None:
    """The first template marks no message: its answers are known by what they say alone."""
    server = Server(tiny_model, {"chat_template": llama_templates_dir / f"{template}.jinja"})
    try:
        server.start()
        with httpx.Client(base_url=server.url, timeout=120) as client:
            for written in (" ", " I came.", "<think>\nWhere?"):
                said = [HELLO, {"role": "assistant", "content": f"You called{len(written)},"}]
                grammar = f"root ::= {json.dumps(written)}"
                (answer,) = post(client, CHAT, {"messages": said, "grammar": grammar})
                said.append(answer["choices"][0]["message"])
                for stream in (False, True):
                    post(client, CHAT, {"messages": said}, stream=stream)
    finally:
        server.stop()
