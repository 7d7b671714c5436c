"""API keys on every route but /health, and what pages of others may do in a browser."""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncIterator, Sequence

import httpx2 as httpx
import pytest

from luce.supervisor.config import ConfigError
from luce.supervisor.http.server import is_loopback, require_keys_if_exposed
from luce.supervisor.http.settings import ServeSettings
from luce.supervisor.http.transport.access_control import ApiKeys, allowed_origin
from tests.http.conftest import MakeServer

CHAT = "/v1/chat/completions"
HELLO = {"model": "any", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
KEY = "key-ä-1"
GUARDED = (
    ("GET", "/"),
    ("GET", "/metrics"),
    ("GET", "/props"),
    ("GET", "/openapi.json"),
    ("GET", "/v1/models"),
    ("GET", "/nowhere"),
    ("PUT", "/health"),
    ("GET", "/health/"),
    ("GET", "/v1/models/health"),
    ("POST", CHAT),
    ("POST", "/v1/messages"),
    ("POST", "/tokenize"),
)


def basic(key: str) -> str:
    return "Basic " + base64.b64encode(f"anyone:{key}".encode()).decode()


async def test_nothing_without_a_key(make_server: MakeServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "luce.http")
    wrong: Sequence[dict[str, str]] = (
        {},
        {"x-api-key": "key"},
        {"x-api-key": ""},
        {"Authorization": "Bearer"},
        {"Authorization": basic("key-2")},
    )
    async with (
        make_server(api_keys=(KEY, "key-2x")) as server,
        httpx.AsyncClient(base_url=server.url, timeout=120) as client,
    ):
        for method, path in GUARDED:
            for headers in wrong:
                answer = await client.request(method, path, headers=headers)
                assert answer.status_code == 401, (path, headers)
                error = answer.json()["error"]
                assert error["type"] == "authentication_error"
                assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert (await client.get("/health")).status_code == 200
        right: Sequence[dict[bytes, bytes]] = (
            {b"Authorization": f"Bearer {KEY}".encode()},
            {b"Authorization": f"bearer   {KEY}".encode()},
            {b"x-api-key": KEY.encode()},
            {b"x-api-key": b"key-2x"},
            {b"Authorization": basic(KEY).encode()},
            {b"Authorization": b"Bearer wrong", b"x-api-key": b"key-2x"},
        )
        for given in right:
            assert (await client.get("/metrics", headers=given)).status_code == 200, given
            assert (await client.post(CHAT, json=HELLO, headers=given)).status_code == 200, given
    assert KEY not in caplog.text
    assert "key-2x" not in caplog.text


def test_clients_are_told_apart_by_their_keys() -> None:
    keys = ApiKeys(["a", "b"])
    assert keys.client_of(["a"]) != keys.client_of(["b"])
    assert keys.client_of(["x", "a"]) == keys.client_of(["a"])
    assert keys.client_of(["x", ""]) is None
    assert keys.client_of([]) is None
    assert keys.client_of(["\udcff"]) is None
    assert not ApiKeys([])


@pytest.fixture(scope="module")
def page() -> dict[str, str]:
    """What a browser says of a page of somebody else's."""
    return {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}


@pytest.fixture
async def open_server(make_server: MakeServer) -> AsyncIterator[httpx.AsyncClient]:
    async with make_server() as server, httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        yield client


async def test_pages_of_others_get_nothing(open_server: httpx.AsyncClient, page: dict[str, str]) -> None:
    answer = await open_server.get("/v1/models", headers=page)
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]
    asked = {**page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    assert (await open_server.options(CHAT, headers=asked)).status_code == 403
    # A "simple" request: a browser sends it without asking, and only hides the answer.
    answer = await open_server.post(CHAT, json=HELLO, headers={**page, "Content-Type": "text/plain"})
    assert answer.status_code == 403
    assert answer.json()["error"]["type"] == "permission_error"
    # What is no page of others' is let in: the status page, and programs that send an Origin.
    for headers in ({"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}, {"Origin": "app://notes"}):
        assert (await open_server.post(CHAT, json=HELLO, headers=headers)).status_code == 200


async def test_pages_that_are_allowed(make_server: MakeServer, page: dict[str, str]) -> None:
    mine = {**page, "Origin": "https://mine.example"}
    settings = {"cors_origins": ("https://mine.example",), "api_keys": ("key",)}
    async with make_server(**settings) as server, httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key,content-type"}
        answer = await client.options(CHAT, headers={**mine, **asked})
        assert answer.status_code == 200
        assert answer.headers["Access-Control-Allow-Origin"] == "https://mine.example"
        assert answer.headers["Access-Control-Allow-Headers"] == "x-api-key,content-type"
        assert "POST" in answer.headers["Access-Control-Allow-Methods"]
        assert (await client.options(CHAT, headers={**page, **asked})).status_code == 403
        evil = {**mine, **asked, "Access-Control-Request-Headers": 'x"y: <b>'}
        assert "<" not in (await client.options(CHAT, headers=evil)).headers["Access-Control-Allow-Headers"]
        answer = await client.post(CHAT, json={**HELLO, "stream": True}, headers={**mine, "x-api-key": "key"})
        assert answer.status_code == 200
        assert answer.headers["Access-Control-Allow-Origin"] == "https://mine.example"
        assert "request-id" in answer.headers["Access-Control-Expose-Headers"]
        answer = await client.post(CHAT, json=HELLO, headers=mine)
        assert answer.status_code == 401
        assert answer.headers["Access-Control-Allow-Origin"] == "https://mine.example", "pages can read errors too"
        assert (await client.post(CHAT, json=HELLO, headers={**page, "x-api-key": "key"})).status_code == 403


async def test_a_foreign_name_for_this_machine(open_server: httpx.AsyncClient) -> None:
    page = {"Sec-Fetch-Site": "same-origin"}
    for name in ("evil.example", "evil.example:80", "localhost.evil.example", "[::"):
        assert (await open_server.get("/props", headers={**page, "Host": name})).status_code in {400, 403}, name
    assert (await open_server.get("/props", headers={"Host": "any.example"})).status_code == 200, "a program's"
    for name in ("localhost:8080", "LOCALHOST", "luce.localhost", "127.0.0.1:1", "[::1]:8080", "10.1.1.1"):
        assert (await open_server.get("/props", headers={**page, "Host": name})).status_code == 200, name


def test_origins() -> None:
    assert allowed_origin(("*",), "https://a") == "https://a"
    assert allowed_origin(("https://a",), "https://a") == "https://a"
    assert allowed_origin(("https://a",), "https://a.evil") is None
    assert allowed_origin((), "null") is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST."])
def test_only_this_machine(host: str) -> None:
    assert is_loopback(host)
    require_keys_if_exposed(ServeSettings(host=host))


@pytest.mark.parametrize(
    "host",
    ["", "0.0.0.0", "::", "10.0.0.1", "example.com", "localhost.evil.example", "fe80::1%lo"],  # noqa: S104
)
def test_an_address_that_others_reach_needs_a_key(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(ConfigError, match="API key"):
        require_keys_if_exposed(ServeSettings(host=host))
    require_keys_if_exposed(ServeSettings(host=host, api_keys=("key",)))
