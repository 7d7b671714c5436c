"""Bodies of every kind of wrong: the client's error, told as such, at little cost."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import httpx2 as httpx
import pytest
from pydantic import BaseModel, ConfigDict

from luce.supervisor.http.anthropic import endpoint as anthropic
from luce.supervisor.http.errors import ApiError
from luce.supervisor.http.openai_chat import endpoint as openai_chat
from luce.supervisor.http.openai_responses import endpoint as openai_responses
from luce.supervisor.http.transport.body import check, parsed
from luce.supervisor.http.transport.json_body import parse_object
from tests.http.serving import Server


class Body(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    n: int | None = None
    inner: list[dict[str, int]] = []


READERS = {
    "/v1/chat/completions": (openai_chat, "read_chat", "messages"),
    "/v1/responses": (openai_responses, "read_request", "input"),
    "/v1/messages": (anthropic, "request_of_messages", "messages"),
}


@pytest.mark.parametrize("path", list(READERS))
def test_a_body_of_many_items_is_read_beside_the_loop(
    server: Server, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """What is made of a short one is made at once: a thread would take longer."""
    module, name, field = READERS[path]
    threads: list[str] = []
    read = getattr(module, name)

    def noted(*args: Any, **options: Any) -> Any:
        threads.append(threading.current_thread().name)
        return read(*args, **options)

    monkeypatch.setattr(module, name, noted)
    for n_items in (1, 10_000):
        items = [{"role": "user", "content": "Hello"}] * n_items
        answer = httpx.post(server.url + path, json={field: items, "max_tokens": 1}, timeout=120)
        assert answer.status_code == (200 if n_items == 1 else 400)
        assert n_items == 1 or "prompt" in answer.text or "context" in answer.text
    assert threads[0] == "server"
    assert threads[1] != "server"


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        ({}, "name"),
        ({"name": 1}, "name"),
        ({"name": "a", "n": "x"}, "n"),
        ({"name": "a", "n": 1.5}, "n"),
        ({"name": "a", "inner": [{"a": 1}, {"a": "x"}]}, "inner.1.a"),
    ],
)
def test_the_first_mistake_is_named(raw: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        check(raw, Body)
    assert caught.value.param == param
    assert param in caught.value.text


def test_many_mistakes_are_told_in_few_words() -> None:
    with pytest.raises(ApiError) as caught:
        check({"name": "a", "inner": [{"a" * 500: "x"}] * 1000}, Body)
    assert len(caught.value.text) <= 2000


def test_unknown_fields_are_taken() -> None:
    assert check({"name": "a", "new": {"x": 1}}, Body).model_extra == {"new": {"x": 1}}


@pytest.mark.asyncio
async def test_others_are_served_while_a_long_body_is_parsed() -> None:
    value = {"messages": [{"role": "user", "content": f"Number {n}"} for n in range(50_000)]}
    reading = asyncio.create_task(parsed(json.dumps(value).encode(), parse_object))
    n_turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        n_turns += 1
    assert reading.result() == value
    assert n_turns > 10
    with pytest.raises(ApiError):
        await parsed(b"[" * (1 << 20), parse_object)
