"""ChatClient: one answer at a time from a server's /v1/chat/completions, as events. Knows HTTP; shows nothing.

An answer counts only when the server has ended it: a stream that breaks off raises ChatError.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp

_CONNECT_S = 10.0
_SILENCE_S = 300.0  # servers of ours show a sign of life every few seconds
_MAX_EVENT_BYTES = 64 << 20
_MAX_ERROR_BYTES = 1 << 16


class ChatError(Exception):
    """Why there is no answer, for people."""


@dataclass(frozen=True, slots=True)
class ReasoningText:
    text: str


@dataclass(frozen=True, slots=True)
class ContentText:
    text: str


@dataclass(frozen=True, slots=True)
class CallPart:
    """More of tool call `index`; id and name come with its first part."""

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class AnswerEnd:
    """The last event; `usage` as the server gave it."""

    reason: str
    usage: Mapping[str, Any] = field(default_factory=dict)


ChatEvent = ReasoningText | ContentText | CallPart | AnswerEnd


def server_url(text: str) -> str:
    """The address without what clients add to it. Raises ValueError."""
    url = text.rstrip("/").removesuffix("/v1")
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"{text!r} is no address of a server: http://127.0.0.1:8080, say")
    return url


class ChatClient:
    def __init__(self, session: aiohttp.ClientSession, url: str, key: str | None) -> None:
        self._session = session
        self._url = url
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    async def answer(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> AsyncIterator[ChatEvent]:
        """Leaving it early ends the answer. Raises ChatError."""
        body = {**options, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
        try:
            async with self._session.post(
                f"{self._url}/v1/chat/completions", json=body, headers=self._headers, timeout=timeout
            ) as response:
                if response.status != 200:
                    raise ChatError(_refusal(response.status, await response.content.read(_MAX_ERROR_BYTES)))
                async for event in _events(response):
                    yield event
        except aiohttp.ClientConnectorError:
            raise ChatError(
                f"there is no server at {self._url}: start one with `luce serve`, or talk to an engine of your own with"
                " `luce chat --own`"
            ) from None
        except TimeoutError:
            raise ChatError(f"the server at {self._url} has fallen silent") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ChatError(f"the connection to {self._url} broke: {error}") from None


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[ChatEvent]:
    reason = ""
    usage: Mapping[str, Any] = {}
    async for data in _server_sent(response):
        if data == "[DONE]":
            if reason == "":
                break
            yield AnswerEnd(reason, usage)
            return
        chunk = _chunk(data)
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices") or ():
            for event in _pieces(choice.get("delta") or {}):
                yield event
            reason = choice.get("finish_reason") or reason
    raise ChatError("the answer broke off: the server did not end it")


async def _server_sent(response: aiohttp.ClientResponse) -> AsyncIterator[str]:
    """The data of each event; comments and other fields are passed over."""
    rest = b""
    async for block in response.content.iter_any():
        *lines, rest = (rest + block).split(b"\n")
        if len(rest) > _MAX_EVENT_BYTES:
            raise ChatError("the server sends an event without an end")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip().decode("utf-8", "replace")


def _chunk(data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except ValueError:
        chunk = None
    if not isinstance(chunk, dict):
        raise ChatError(f"the server sends what is no chat completion: {data[:80]!r}")
    if "error" in chunk:
        raise ChatError(_error_text(chunk))
    return chunk


def _pieces(delta: Mapping[str, Any]) -> Iterator[ChatEvent]:
    if delta.get("reasoning_content"):
        yield ReasoningText(delta["reasoning_content"])
    if delta.get("content"):
        yield ContentText(delta["content"])
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        yield CallPart(
            call.get("index", 0), call.get("id") or "", function.get("name") or "", function.get("arguments") or ""
        )


def _refusal(status: int, body: bytes) -> str:
    try:
        said = json.loads(body)
    except ValueError:
        said = None
    text = _error_text(said) if isinstance(said, dict) else body[:200].decode("utf-8", "replace").strip()
    hint = ": give the server's key in LUCE_API_KEY" if status == 401 else ""
    return f"the server refuses ({status}){hint}: {text}"


def _error_text(said: Mapping[str, Any]) -> str:
    error = said.get("error")
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
