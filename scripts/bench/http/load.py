"""Streams of a server of OpenAI's API, read at as little cost as can be: what is measured is the server, and the reader
takes its share of the same machine.

Knows HTTP/1.1 and the ends of two kinds of streams; must not know which server it is, nor what is compared.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

DEADLINE_S = 3600.0
DONE = b"data: [DONE]"
KEPT_BYTES = 4096  # of a stream's end: the usage stands there


@dataclass(frozen=True)
class Streamed:
    """One stream, on the clock of `monotonic()`."""

    began_s: float
    first_token_s: float
    ended_s: float
    n_tokens: int
    n_bytes: int


class Passed:
    """How many events have come so far, in all streams of a burst: nearly one a token."""

    def __init__(self) -> None:
        self.n_events = 0


async def stream(url: str, path: str, body: dict[str, Any], passed: Passed | None = None) -> Streamed:
    """One answer with `stream_options.include_usage`. Raises RuntimeError where the server gives none."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            began_s = monotonic()
            writer.write(f"{head}Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
            return await _read(reader, began_s, passed or Passed())
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader, began_s: float, passed: Passed) -> Streamed:
    first_token_s: float | None = None
    kept, n_bytes = b"", 0
    while chunk := await reader.read(65536):
        n_bytes += len(chunk)
        passed.n_events += chunk.count(b"data: ")
        if first_token_s is None:
            kept += chunk
            if _has_text(kept):
                first_token_s = monotonic()
        else:
            kept = (kept + chunk)[-KEPT_BYTES:]
    ended_s = monotonic()
    if DONE not in kept or first_token_s is None:
        raise RuntimeError(f"the stream came to no end of its own: {kept[-500:]!r}")
    return Streamed(began_s, first_token_s, ended_s, _n_tokens(kept), n_bytes)


def _events(data: bytes) -> list[dict[str, Any]]:
    """Those that stand in `data` as a whole; a chunk of HTTP may begin in the middle of a line only at its end."""
    found = []
    for line in data.split(b"\n"):
        if line.startswith(b"data: {"):
            try:
                found.append(json.loads(line[6:]))
            except ValueError:
                continue
    return found


def _has_text(data: bytes) -> bool:
    """Whether the first token's text is there; before it there may be a role, comments and chunks that keep alive."""
    for event in _events(data):
        for choice in event.get("choices", ()):
            delta = choice.get("delta", choice)
            if delta.get("text") or delta.get("content") or delta.get("reasoning_content"):
                return True
    return False


def _n_tokens(data: bytes) -> int:
    for event in reversed(_events(data)):
        if event.get("usage"):
            return int(event["usage"]["completion_tokens"])
    raise RuntimeError("the server sent no usage")


@dataclass(frozen=True)
class Burst:
    """Streams that began at the same time."""

    streams: Sequence[Streamed]

    @property
    def n_tokens(self) -> int:
        return sum(each.n_tokens for each in self.streams)

    @property
    def tokens_per_s(self) -> float:
        """From the first token of all to the last one's end."""
        first_s = min(each.first_token_s for each in self.streams)
        return self.n_tokens / (max(each.ended_s for each in self.streams) - first_s)


async def burst(url: str, path: str, bodies: Sequence[dict[str, Any]], passed: Passed | None = None) -> Burst:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(stream(url, path, body, passed)) for body in bodies]
    return Burst([task.result() for task in tasks])
