"""Bodies of every kind of wrong: the client's error, told as such, at little cost."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import suppress
from typing import Any

import httpx2 as httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from luce.supervisor.http.anthropic import endpoint as anthropic
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.openai_chat import endpoint as openai_chat
from luce.supervisor.http.openai_responses import endpoint as openai_responses
from luce.supervisor.http.transport.body import MAX_DEPTH, MAX_MESSAGES, MAX_VALUES, check, parse_object, parsed
from tests.http.serving import Server


class Body(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    n: int | None = None
    inner: list[dict[str, int]] = []


def nested(depth: int, opening: str, closing: str) -> bytes:
    return ('{"a":' + opening * depth + "1" + closing * depth + "}").encode()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "empty"),
        (b" \r\n\t", "empty"),
        (b"{", "not JSON"),
        (b"[]", "JSON object"),
        (b'"text"', "JSON object"),
        (b"null", "JSON object"),
        (b"1", "JSON object"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": [Infinity]}', "Infinity"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": -1e999}', "too large"),
        (b'{"a": 184467440737095516150}', "too large"),
        (b'{"a": -184467440737095516150}', "too large"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "too large"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"x": [{"a": 1, "b": 3, "a": 1}]}', "twice"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "UTF-8"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"a": ["x\\udfffx"]}', "surrogate"),
        (b'{"\\udc00": 1}', "surrogate"),
        (b'{"a": "\x00"}', "not JSON"),
        (b"{'a': 1}", "not JSON"),
        (b'{"a": 1} {"b": 2}', "not JSON"),
        (b'{"a": 1,}', "not JSON"),
        (b'\xef\xbb\xbf{"a": 1}', "not JSON"),
        (nested(MAX_DEPTH, "[", "]"), "too deeply"),
        (nested(100_000, "[", "]"), "too deeply"),
        (nested(100_000, '{"a":', "}"), "too deeply"),
        (nested(100_000, "[", ""), "too deeply"),
    ],
)
def test_what_is_no_object_of_json(data: bytes, text: str) -> None:
    with pytest.raises(ApiError, match=text) as caught:
        parse_object(data)
    assert caught.value.kind is ErrorKind.INVALID


@pytest.mark.parametrize("before", [1, 10, 20, 21])
def test_a_long_number_is_found_wherever_the_body_is_cut(before: int) -> None:
    """A long text is looked through piece by piece."""
    begin = '{"a": "'
    text = "x" * ((1 << 18) - len(begin) - len('", "n": ') - before)
    with pytest.raises(ApiError, match="too large"):
        parse_object(f'{begin}{text}", "n": {"1" * 21}}}'.encode())


@pytest.mark.parametrize("name", ["messages", "input"])
def test_messages_are_counted_before_anything_is_made_of_them(name: str) -> None:
    items = ",".join(["{}"] * (MAX_MESSAGES + 1))
    with pytest.raises(ApiError, match=f"{name} has 100,001 items") as caught:
        parse_object(f'{{"{name}": [{items}]}}'.encode())
    assert (caught.value.kind, caught.value.code) == (ErrorKind.INVALID, "too_many_messages")


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


@pytest.mark.parametrize("data", [b"[" + b"[]," * MAX_VALUES + b"1]", b'{"a":[' + b"0," * MAX_VALUES + b"0]}"])
def test_values_are_counted_before_they_are_made(data: bytes) -> None:
    with pytest.raises(ApiError, match="more than") as caught:
        parse_object(data)
    assert caught.value.kind is ErrorKind.TOO_LARGE


@pytest.mark.parametrize(
    "value",
    [
        {"seed": 2**64 - 1, "low": -(2**63), "zero": 0, "small": 1e-999, "big": 1e308},
        {"emoji": "\U0001f600", "zero byte": "\0", "separators": "\u2028\x85"},
        {"digits in a text": "9" * 1000, "a\\ud800b": "an escaped backslash before it"},
        {"": ""},
    ],
)
def test_what_is_unusual_and_right(value: dict[str, Any]) -> None:
    for escapes in (True, False):
        assert parse_object(json.dumps(value, ensure_ascii=escapes).encode()) == json.loads(json.dumps(value))


def test_the_deepest_that_is_taken() -> None:
    assert parse_object(nested(MAX_DEPTH - 1, "[", "]"))["a"]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_the_clients_error(data: bytes) -> None:
    with suppress(ApiError):
        json.dumps(parse_object(data), ensure_ascii=False, allow_nan=False).encode()


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
