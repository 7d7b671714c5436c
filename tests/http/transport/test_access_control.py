"""API keys on every route but /health."""

from __future__ import annotations

import base64
import logging
from collections.abc import Sequence

import httpx2 as httpx
import pytest

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
    ("GET", "/v1/models/health"),
    ("GET", "//v1//models/"),
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
