"""What clients repeat in their history is taken in every API, in the same way each turn, and the log says so once."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import httpx2 as httpx
import pytest

from tests.http.conftest import MakeServer
from tests.http.serving import Server

LONG = "All work and no play makes a dull day. " * 30
WEI = {"type": "integer", "minimum": 0, "maximum": 2**256 - 1}
TOOL = {"name": "pay", "parameters": {"type": "object", "properties": {"wei": WEI}}}
HOLE = "@hole@"


def chat(text: str) -> dict[str, Any]:
    call = {"id": "call_1", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
    return {
        "messages": [
            {"role": "user", "content": LONG},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": text},
            {"role": "user", "content": "And?"},
        ],
        "tools": [{"type": "function", "function": TOOL}],
        "max_tokens": 1,
    }


def messages(text: str) -> dict[str, Any]:
    call = {"type": "tool_use", "id": "toolu_1", "name": "pay", "input": {"wei": HOLE}}
    return {
        "messages": [
            {"role": "user", "content": LONG},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": text}]},
        ],
        "tools": [{"name": TOOL["name"], "input_schema": TOOL["parameters"]}],
        "max_tokens": 1,
    }


def responses(text: str) -> dict[str, Any]:
    return {
        "input": [
            {"role": "user", "content": LONG},
            {"type": "function_call", "call_id": "call_1", "name": "pay", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": text},
        ],
        "tools": [{"type": "function", **TOOL}],
        "max_output_tokens": 1,
    }


def completions(text: str) -> dict[str, Any]:
    return {"prompt": LONG + text, "max_tokens": 1}


APIS: dict[str, Callable[[str], dict[str, Any]]] = {
    "/v1/chat/completions": chat,
    "/v1/messages": messages,
    "/v1/responses": responses,
    "/v1/completions": completions,
}


def n_cached(answer: dict[str, Any]) -> int:
    usage = answer["usage"]
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return int(usage.get("cache_read_input_tokens", details.get("cached_tokens", 0)))


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120) as made:
        yield made


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "cut",
    [rb"cut \ud83d", rb"\udfff\ud800 and \ud83d\ude00", b"cut \xf0\x9f\xa6", b"K\xe4se"],
    ids=["surrogate", "surrogates", "bytes", "latin-1"],
)
def test_text_that_cannot_be(client: httpx.Client, path: str, cut: bytes, stream: bool) -> None:
    body = json.dumps({**APIS[path](HOLE), "stream": stream}).encode().replace(HOLE.encode(), cut)
    answers = [client.post(path, content=body) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200], answers[0].text
    if not stream:
        assert n_cached(answers[1].json()) > 100


@pytest.mark.parametrize(
    "number",
    [b"1" + b"0" * 20, b"-" + b"9" * 300, b"9" * 5000, b"1e999", b"-1e999", b"NaN", b"[Infinity]", b'{"a":1,"a":2}'],
    ids=["wei", "long", "longer", "float", "negative", "nan", "infinity", "twice"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_numbers_that_are_odd_in_an_earlier_call(client: httpx.Client, number: bytes, stream: bool) -> None:
    body = json.dumps({**messages("paid"), "stream": stream}).encode().replace(f'"{HOLE}"'.encode(), number)
    answers = [client.post("/v1/messages", content=body) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200], answers[0].text
    if not stream:
        assert n_cached(answers[1].json()) > 100


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("charset", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_charsets(client: httpx.Client, path: str, charset: str) -> None:
    body = json.dumps(APIS[path]("Käse"), ensure_ascii=False)
    plain = client.post(path, content=body.encode())
    answer = client.post(
        path, content=body.encode(charset), headers={"Content-Type": f"application/json; charset={charset}"}
    )
    assert answer.status_code == plain.status_code == 200
    first, second = (value.json()["usage"] for value in (plain, answer))
    name = "prompt_tokens" if "prompt_tokens" in first else "input_tokens"
    if path != "/v1/messages":  # whose count leaves out what is cached
        assert second[name] == first[name]


@pytest.mark.parametrize("path", APIS)
def test_a_count_may_be_written_as_a_float(client: httpx.Client, path: str) -> None:
    body = APIS[path]("paid")
    name = "max_output_tokens" if "max_output_tokens" in body else "max_tokens"
    for stream in (False, True):
        answer = client.post(path, json={**body, name: 2.0, "seed": 3.0, "top_k": 4.0, "stream": stream})
        assert answer.status_code == 200, answer.text
    for wrong in ("2.5", "1e999", "9" * 30, "9" * 5000, "-" + "9" * 30, "NaN"):
        data = json.dumps({**body, name: HOLE}).replace(f'"{HOLE}"', wrong)
        refused = client.post(path, content=data)
        assert refused.status_code == 400, wrong
        assert name in refused.json()["error"]["message"]


async def test_the_log_says_it_once_for_each_client(make_server: MakeServer, caplog: pytest.LogCaptureFixture) -> None:
    async with (
        make_server(api_keys=("a", "b")) as server,
        httpx.AsyncClient(base_url=server.url, timeout=120) as client,
    ):
        for key in ("a", "b"):
            for text in (r"\ud800", r"\udfff"):
                answer = await client.post(
                    "/tokenize", content=f'{{"content": "{text}"}}', headers={"Authorization": f"Bearer {key}"}
                )
                assert answer.status_code == 200
    said = [record for record in caplog.records if "halves of surrogate pairs" in record.getMessage()]
    assert [record.levelno for record in said] == [logging.WARNING] * 2
