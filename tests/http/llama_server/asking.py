"""What is asked here, and how the answers are read. Knows no fixture."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx

CODE = "def add(a, b):\n"


def told(client: httpx.Client, path: str, **body: Any) -> Any:
    """What a request is answered with that has to be served."""
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    """The error of a request that has to be refused."""
    answer = client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["message"]
    return error


def data_lines(client: httpx.Client, path: str, **body: Any) -> list[bytes]:
    """Of a stream, comments left out: whole events, each up to its blank line."""
    answer = client.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    events = answer.content.split(b"\n\n")
    assert events.pop() == b""
    lines = [line for event in events for line in event.split(b"\n")]
    return [line for line in lines if line.startswith(b"data: ")]


def events(client: httpx.Client, path: str, **body: Any) -> list[Any]:
    """The values of a stream, without the word that ends it."""
    lines = data_lines(client, path, **body)
    return [json.loads(line.removeprefix(b"data: ")) for line in lines if line != b"data: [DONE]"]
