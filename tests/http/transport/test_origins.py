"""What pages of others may do in a browser: nothing, unless their origin is allowed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2 as httpx
import pytest

from luce.supervisor.http.transport.origins import allowed_origin
from tests.http.conftest import MakeServer
from tests.http.serving import Server

CHAT = "/v1/chat/completions"
HELLO = {"model": "any", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
EVIL = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
"""What a browser says of a page of somebody else's."""


@pytest.fixture
async def client(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        yield client


@pytest.mark.parametrize(
    "page",
    [
        EVIL,
        {"Origin": "http://evil.example"},  # a browser that says no more
        {"Sec-Fetch-Site": "cross-site"},  # an image, a script, a form without an origin
        {"Sec-Fetch-Site": "same-site"},  # another port of this machine, in a page
        {"Origin": "null"},  # a frame in a sandbox, a file
        {"Origin": "http://localhost:1"},
        {"Origin": "https://localhost.evil.example"},
        {"Origin": "app://notes"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    ],
)
async def test_pages_of_others_get_nothing(client: httpx.AsyncClient, page: dict[str, str]) -> None:
    for method, path in (("GET", "/v1/models"), ("GET", "/"), ("POST", CHAT), ("DELETE", "/v1/responses/x")):
        content = b'{"messages": []}' if method == "POST" else None
        answer = await client.request(method, path, content=content, headers={**page, "Content-Type": "text/plain"})
        assert answer.status_code == 403, (method, path)
        assert answer.json()["error"]["type"] == "permission_error"
        assert "--cors-origin" in answer.json()["error"]["message"]
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
    asked = {**page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    assert (await client.options(CHAT, headers=asked)).status_code == 403


async def test_what_is_no_page_of_others(client: httpx.AsyncClient) -> None:
    """The page that the server itself sends; programs, with any content type; somebody who follows a link."""
    own = str(client.base_url).rstrip("/")
    for headers in (
        {"Origin": own, "Sec-Fetch-Site": "same-origin"},
        {"Origin": own},
        {"Sec-Fetch-Site": "none"},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
    ):
        assert (await client.post(CHAT, json=HELLO, headers=headers)).status_code == 200, headers
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert (await client.get("/", headers=link)).status_code == 200
    assert (await client.post(CHAT, json=HELLO, headers=link)).status_code == 403, "a form that a page has sent"


async def test_an_origin_has_no_user_and_no_path(client: httpx.AsyncClient, server: Server) -> None:
    for origin, status in ((server.url, 200), (f"{server.url}/", 403), (server.url.replace("//", "//evil@"), 403)):
        assert (await client.get("/v1/models", headers={"Origin": origin})).status_code == status, origin


async def test_pages_that_are_allowed(make_server: MakeServer) -> None:
    mine = {**EVIL, "Origin": "https://mine.example"}
    settings = {"cors_origins": ("https://mine.example",), "api_keys": ("key",)}
    async with make_server(**settings) as server, httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key,content-type"}
        answer = await client.options(CHAT, headers={**mine, **asked})
        assert answer.status_code == 200
        assert answer.headers["Access-Control-Allow-Origin"] == "https://mine.example"
        assert answer.headers["Access-Control-Allow-Headers"] == "x-api-key,content-type"
        assert "POST" in answer.headers["Access-Control-Allow-Methods"]
        assert "Access-Control-Allow-Private-Network" not in answer.headers
        asked["Access-Control-Request-Private-Network"] = "true"
        answer = await client.options(CHAT, headers={**mine, **asked})
        assert answer.headers["Access-Control-Allow-Private-Network"] == "true"
        answer = await client.options(CHAT, headers={**EVIL, **asked})
        assert answer.status_code == 403
        assert "Access-Control-Allow-Private-Network" not in answer.headers
        evil = {**mine, **asked, "Access-Control-Request-Headers": 'x"y: <b>'}
        assert "<" not in (await client.options(CHAT, headers=evil)).headers["Access-Control-Allow-Headers"]
        answer = await client.post(CHAT, json={**HELLO, "stream": True}, headers={**mine, "x-api-key": "key"})
        assert answer.status_code == 200
        assert answer.headers["Access-Control-Allow-Origin"] == "https://mine.example"
        assert "request-id" in answer.headers["Access-Control-Expose-Headers"]
        answer = await client.post(CHAT, json=HELLO, headers=mine)
        assert answer.status_code == 401
        assert answer.headers["Access-Control-Allow-Origin"] == "https://mine.example", "pages can read errors too"
        assert (await client.post(CHAT, json=HELLO, headers={**EVIL, "x-api-key": "key"})).status_code == 403


def test_origins() -> None:
    assert allowed_origin(("*",), "https://a") == "https://a"
    assert allowed_origin(("https://a",), "https://a") == "https://a"
    assert allowed_origin(("https://a",), "https://a.evil") is None
    assert allowed_origin((), "null") is None
