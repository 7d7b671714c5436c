"""Paths that clients put together wrongly are served where they can mean one thing, and else told of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest

from luce.supervisor.http.transport.served_paths import served_path
from tests.http.conftest import MakeServer
from tests.http.raw_client import get, raw_client
from tests.http.serving import Server

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120) as made:
        yield made


@pytest.mark.parametrize(
    ("path", "served"),
    [
        ("/", "/"),
        ("//", "/"),
        ("/v1/models", "/v1/models"),
        ("/v1//models", "/v1/models"),
        ("//v1/models", "/v1/models"),
        ("/v1/models/", "/v1/models"),
        ("/v1/models///", "/v1/models"),
        ("/v1/v1/models", "/v1/models"),
        ("/v1//v1/v1/models/", "/v1/models"),
        ("/v1/v1", "/v1/v1"),
        ("/v1/models/a/v1/b", "/v1/models/a/v1/b"),
        ("/v1/%2F%2Fmodels", "/v1/%2F%2Fmodels"),
    ],
)
def test_what_is_meant(path: str, served: str) -> None:
    assert served_path(path) == served


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/completions", {"messages": HELLO, "max_tokens": 1}),
        ("/responses", {"input": "Hello", "max_output_tokens": 1}),
        ("/messages", {"messages": HELLO, "max_tokens": 1}),
        ("/messages/count_tokens", {"messages": HELLO}),
        ("/completions", {"prompt": "Hello", "max_tokens": 1}),
    ],
)
def test_each_api_with_and_without_v1(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    for wrong in (
        path,
        f"/v1{path}",
        f"/{path}",
        f"/v1/{path}",
        f"/v1/v1{path}",
        f"/v1{path}/",
        f"//v1{path}?beta=true",
    ):
        answer = client.post(f"{client.base_url}".rstrip("/") + wrong, json=body)
        assert answer.status_code == 200, (wrong, answer.text)
        streamed = client.post(f"{client.base_url}".rstrip("/") + wrong, json={**body, "stream": True})
        assert streamed.status_code == 200, wrong


async def test_models_and_queries(server: Server) -> None:
    async with raw_client(server.url) as client:
        for path in ("/v1//models", "//v1/models", "/v1/models/", "/v1/v1/models", "/models/", "//models?x=//y"):
            await client.send(get(path))
            answer = await client.read_answer()
            assert answer.status == 200, path
            assert answer.json()["object"] == "list"
        for path in ("/v1/models/any/name", "/models/any/name", "/v1//models/any/name/"):
            await client.send(get(path))
            assert (await client.read_answer()).json()["id"] == "any/name"


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/chat/completions/chat/completions", "/v1/chat/completions"),
        ("/v1/mesages", "/v1/messages"),
        ("/V1/MODELS", "/v1/models"),
        ("/api/v1/models", "/v1/models"),
        ("/helth", "/health"),
    ],
)
def test_the_nearest_is_named(client: httpx.Client, path: str, nearest: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["code"] == "unknown_url"
    assert f"GET {path} " in error["message"]
    assert error["message"].endswith(f"the nearest path is {nearest}")


def test_a_path_like_none_is_told(client: httpx.Client) -> None:
    for path in ("/xyzzy", "/" + "q" * 5000):
        message = client.get(path).json()["error"]["message"]
        assert path[:100] in message
        assert "nearest" not in message


def test_errors_without_v1_are_in_the_words_of_their_api(client: httpx.Client) -> None:
    assert client.post("/messages", json={}).json()["type"] == "error"
    assert "type" not in client.post("/responses", json={"input": 5}).json()


async def test_a_key_opens_no_more_by_another_path(make_server: MakeServer) -> None:
    async with make_server(api_keys=("key",)) as server, raw_client(server.url) as client:
        for path, status in (("//metrics", 401), ("/metrics/", 401), ("//health", 200), ("/v1/v1/models", 401)):
            await client.send(get(path))
            assert (await client.read_answer()).status == status, path
