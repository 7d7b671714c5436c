"""Asking a real server with bodies that a client repeats: what is answered, and what is refused with its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest

from tests.http.asking import RESPONSES, strict_json
from tests.http.serving import Server

HELLO = {"role": "user", "content": "Hello"}
GO_ON = {"role": "user", "content": "Go on."}


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120) as client:
        yield client


def post(client: httpx.Client, path: str, body: dict[str, Any], *, stream: bool = False) -> list[dict[str, Any]]:
    """The answer, or the events of its stream. All of it is JSON by the standard."""
    limit = {"max_output_tokens" if path == RESPONSES else "max_tokens": 8}
    answer = client.post(path, content=json.dumps({"model": "m", "temperature": 0, **limit, **body, "stream": stream}))
    assert answer.status_code == 200, answer.text
    if not stream:
        return [strict_json(answer.text)]
    lines = (line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: "))
    events = [strict_json(line) for line in lines if line != "[DONE]"]
    assert all("error" not in event and event.get("type") not in {"error", "response.failed"} for event in events)
    return events


def refused(client: httpx.Client, path: str, body: dict[str, Any]) -> tuple[str, str | None]:
    answer = client.post(path, json={"max_tokens": 8, **body} if path != RESPONSES else body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error["message"], error.get("param")
