"""`pin`: parts of a prompt that stay in sight where texts may outgrow the pool, in each dialect, to the real engine."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from luce.supervisor.http.errors import ApiError
from luce.supervisor.http.prompts.answer_request import ChatPrompt, Pin, TextPrompt
from luce.supervisor.http.prompts.pinned_ranges import pinned_spans, read_pins
from luce.supervisor.text import MessageMark
from tests.http.serving import BOUNDED, Server

SHORT, LONG = "Be brief.", "Remember that the harbour is closed. " * 80
CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
)


@pytest.fixture(scope="module")
def bounded(tiny_model: Path) -> Iterator[Server]:
    server = Server(tiny_model, BOUNDED).start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def unbounded(tiny_model: Path) -> Iterator[Server]:
    server = Server(tiny_model, {}).start()
    try:
        yield server
    finally:
        server.stop()


def post(server: Server, path: str, **body: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def body_of(path: str, system: str) -> dict[str, Any]:
    question = [{"role": "user", "content": LONG}, {"role": "user", "content": "What is closed?"}]
    if path == RESPONSES:
        return {"instructions": system, "input": LONG, "max_output_tokens": 2}
    if path == MESSAGES:
        return {"model": "any", "system": system, "messages": question, "max_tokens": 2}
    return {"messages": [{"role": "system", "content": system}, *question], "max_tokens": 2}


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_a_system_prompt_is_pinned_in_each_dialect_that_has_one(bounded: Server, path: str) -> None:
    assert post(bounded, path, pin="system", **body_of(path, SHORT))[0] == 200
    assert post(bounded, path, **body_of(path, LONG))[0] == 200
    status, told = post(bounded, path, pin="system", **body_of(path, LONG))
    assert status == 400, told
    assert "pin" in told["error"]["message"]
    status, told = post(bounded, path, pin="system", stream=True, **body_of(path, LONG))
    assert status == 400, told


def test_messages_are_pinned_by_their_number(bounded: Server) -> None:
    body = body_of(CHAT, SHORT)
    assert post(bounded, CHAT, pin=[0, 2], **body)[0] == 200
    assert post(bounded, CHAT, pin=["system", 2], **body)[0] == 200
    assert post(bounded, CHAT, pin=1, **body)[0] == 400  # the long one
    status, told = post(bounded, CHAT, pin=3, **body)
    assert (status, told["error"]["param"]) == (400, "pin")
    assert "there is no message 3" in told["error"]["message"]


def test_a_texts_pins_are_positions(bounded: Server) -> None:
    text = {"prompt": LONG, "max_tokens": 2}
    assert post(bounded, COMPLETIONS, pin=[[64, 128]], **text)[0] == 200
    assert post(bounded, COMPLETIONS, pin=[[0, 700]], **text)[0] == 400
    status, told = post(bounded, COMPLETIONS, pin=[[0, 100000]], **text)
    assert status == 400, told


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_where_the_pool_holds_all_texts_pins_change_nothing(unbounded: Server, path: str) -> None:
    assert post(unbounded, path, pin="system", **body_of(path, LONG))[0] == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
@pytest.mark.parametrize(
    "pin", ["everything", -1, True, 1.5, {}, [[4, 4]], [[5, 4]], [["0", 4]], [None], ["system"] * 5000]
)
def test_what_is_no_pin_is_refused(unbounded: Server, path: str, pin: Any) -> None:
    body = {"prompt": "Hello", "max_tokens": 2} if path == COMPLETIONS else body_of(path, SHORT)
    status, told = post(unbounded, path, pin=pin, **body)
    assert status == 400, told
    assert "pin" in told["error"]["message"]


def test_no_pin_is_none() -> None:
    assert read_pins(None, "system") == ()
    assert read_pins([], "system") == ()


def turns(*places: tuple[str, int | None]) -> list[tuple[MessageMark, int | None]]:
    return [(MessageMark(0, 0, role), place) for role, place in places]


def chat(*roles: str, **changes: Any) -> ChatPrompt:
    return ChatPrompt(messages=[{"role": role, "content": "x"} for role in roles], **changes)


PLAIN = turns(("system", 0), ("user", 10), ("assistant", 20), ("user", 30), ("assistant", 40))
ROLES = ("system", "user", "assistant", "user")


@pytest.mark.parametrize(
    ("pins", "prompt", "places", "spans"),
    [
        (["system"], chat(*ROLES), PLAIN, [(0, 10)]),
        ([0, 1, 3], chat(*ROLES), PLAIN, [(0, 10), (10, 20), (30, 40)]),
        (["system"], chat("user"), turns(("user", 0), ("assistant", 10)), []),
        # The template's own system message is nobody's, but what it says of tools is pinned as such.
        (["system", 0], chat("user"), turns(("system", 0), ("user", 7), ("assistant", 10)), [(0, 7), (7, 10)]),
        # Nothing of the answer is begun: the last message is the last.
        ([3], chat(*ROLES, opens_answer=False), PLAIN[:4], [(30, 45)]),
        ([1], chat("user", "assistant", continues_last=True), turns(("user", 0), ("assistant", 9)), [(9, 45)]),
        # Within an answer that is known nothing begins that could be told.
        ([1, 2], chat(*ROLES), [*PLAIN[:2], (PLAIN[2][0], None), *PLAIN[3:]], [(10, 30)]),
    ],
)
def test_parts_of_a_conversation_are_found_in_its_prompt(
    pins: list[Pin], prompt: ChatPrompt, places: list[tuple[MessageMark, int | None]], spans: list[tuple[int, int]]
) -> None:
    assert list(pinned_spans(pins, prompt, places, 45)) == spans


def test_where_the_template_makes_other_messages_only_the_system_prompt_can_be_pinned() -> None:
    merged = turns(("system", 0), ("user", 10), ("assistant", 40))
    assert pinned_spans(["system"], chat(*ROLES), merged, 45) == ((0, 10),)
    with pytest.raises(ApiError, match="makes 2 messages of these 4"):
        pinned_spans([1], chat(*ROLES), merged, 45)


def test_a_texts_positions_are_its_own() -> None:
    assert pinned_spans([(3, 9)], TextPrompt(content=""), (), 45) == ((3, 9),)
