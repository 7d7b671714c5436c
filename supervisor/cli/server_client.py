"""ServerClient: streamed answers from any server of OpenAI's API, and what else it answers at once. Knows HTTP; shows
nothing, measures nothing.

An answer counts only when the server has ended it: a stream that breaks off raises ServerError. It blocks, so that
Ctrl-C in the main thread ends the wait, and with it the answer.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"

_CONNECT_S = 10.0
_SILENCE_S = 300.0  # our servers show a sign of life every few seconds
_MAX_EVENT_BYTES = 64 << 20
_MAX_ERROR_BYTES = 1 << 16
_UNIX = "unix:"

Piece = tuple[Literal["reasoning", "content", "call"], str]


class ServerError(Exception):
    """Why there is no answer, for people. `status` is the HTTP status of a refusal, else None."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


@dataclass(slots=True)
class ToolCall:
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Answer:
    """What has come of one answer. `reason` and `usage` come at its end, as the server gave them."""

    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    reason: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)


def server_url(text: str) -> str:
    """The address without what clients add to it. Raises ValueError."""
    if text.startswith(_UNIX) and len(text) > len(_UNIX):
        return text
    url = text.rstrip("/").removesuffix("/v1")
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"{text!r} is no address of a server: http://127.0.0.1:8080, say, or unix:PATH")
    return url


class _UnixConnection(http.client.HTTPConnection):
    """To a socket with a name in the file system."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class ServerClient:
    def __init__(self, url: str, key: str | None) -> None:
        """Raises ValueError for a key that no header can hold."""
        self.url = url
        self._headers: dict[str, str | bytes] = {"Content-Type": "application/json"}
        if key is not None:
            if not key.isprintable():
                raise ValueError("is asked with a key that holds a line break, or another character that no key has")
            self._headers["Authorization"] = f"Bearer {key}".encode()

    def stream(self, path: str, body: Mapping[str, Any], answer: Answer) -> Generator[Piece, None, None]:
        """The pieces of an answer as they come, gathered in `answer`. Closing it early ends the answer. Raises
        ServerError."""
        with self._asked(path, {**body, "stream": True, "stream_options": {"include_usage": True}}) as response:
            yield from _pieces(response, answer)

    def ask(self, path: str, body: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """The JSON object that is answered at once: after `timeout_s` of silence it is given up. Raises ServerError."""
        with self._asked(path, body, timeout_s) as response:
            return self._object(response)

    def look(self, path: str, timeout_s: float) -> dict[str, Any]:
        """The JSON object that is there to be read. As `ask`."""
        with self._asked(path, None, timeout_s, min(timeout_s, _CONNECT_S)) as response:
            return self._object(response)

    def _object(self, response: http.client.HTTPResponse) -> dict[str, Any]:
        try:
            said = json.loads(response.read())
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise ServerError(f"what {self.url} answers is no JSON object")
        return said

    @contextmanager
    def _asked(
        self,
        path: str,
        body: Mapping[str, Any] | None,
        silence_s: float = _SILENCE_S,
        connect_s: float = _CONNECT_S,
    ) -> Iterator[http.client.HTTPResponse]:
        """Without a body it is a GET."""
        connection = self._connect(silence_s, connect_s)
        prefix = "" if self.url.startswith(_UNIX) else urlsplit(self.url).path
        data = None if body is None else json.dumps(body).encode()
        try:
            connection.request("GET" if data is None else "POST", prefix + path, data, self._headers)
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise _refusal(response.status, response.read(_MAX_ERROR_BYTES))
            yield response
        except TimeoutError:
            raise ServerError(f"the server at {self.url} has fallen silent") from None
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"the connection to {self.url} broke: {error}") from None
        finally:
            connection.close()

    def _connect(self, silence_s: float, connect_s: float) -> http.client.HTTPConnection:
        try:
            connection = self._connection(connect_s)
            connection.connect()
        except ssl.SSLCertVerificationError as error:
            text = f"the certificate of {self.url} is not trusted ({error.verify_message})"
            raise ServerError(f"{text}: name a file that holds it in SSL_CERT_FILE") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ServerError(f"there is no server at {self.url} ({error}): start one with `luce serve`") from None
        connection.sock.settimeout(silence_s)
        return connection

    def _connection(self, connect_s: float) -> http.client.HTTPConnection:
        if self.url.startswith(_UNIX):
            return _UnixConnection(self.url.removeprefix(_UNIX), connect_s)
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname, parts.port, timeout=connect_s)


def _pieces(response: http.client.HTTPResponse, answer: Answer) -> Iterator[Piece]:
    calls: dict[int, ToolCall] = {}
    while line := response.readline(_MAX_EVENT_BYTES + 1):
        if len(line) > _MAX_EVENT_BYTES:
            raise ServerError("the server sends an event without an end")
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip().decode("utf-8", "replace")
        if data == "[DONE]":
            if answer.reason == "":
                break
            answer.calls = [call for _, call in sorted(calls.items())]
            return
        chunk = _chunk(data)
        answer.usage = chunk.get("usage") or answer.usage
        for choice in chunk.get("choices") or ():
            yield from _of_choice(choice, answer, calls)
            answer.reason = choice.get("finish_reason") or answer.reason
    raise ServerError("the answer broke off: the server did not end it")


def _of_choice(choice: Mapping[str, Any], answer: Answer, calls: dict[int, ToolCall]) -> Iterator[Piece]:
    """Completions have their text in the choice itself, chats in its delta."""
    delta = choice.get("delta") or choice
    if reasoning := delta.get("reasoning_content") or delta.get("reasoning"):
        answer.reasoning += reasoning
        yield "reasoning", reasoning
    if content := delta.get("content") or delta.get("text"):
        answer.content += content
        yield "content", content
    for part in delta.get("tool_calls") or ():
        function = part.get("function") or {}
        call = calls.setdefault(part.get("index", 0), ToolCall())
        call.id += part.get("id") or ""
        call.name += function.get("name") or ""
        call.arguments += function.get("arguments") or ""
        yield "call", ""


def _chunk(data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except ValueError:
        chunk = None
    if not isinstance(chunk, dict):
        raise ServerError(f"the server sends what is no chat completion: {data[:80]!r}")
    if "error" in chunk:
        raise ServerError(_error_text(chunk))
    return chunk


def _refusal(status: int, body: bytes) -> ServerError:
    try:
        said = json.loads(body)
    except ValueError:
        said = None
    text = _error_text(said) if isinstance(said, dict) else body[:200].decode("utf-8", "replace").strip()
    hint = ": give the server's key in LUCE_API_KEY" if status == http.client.UNAUTHORIZED else ""
    return ServerError(f"the server refuses ({status}){hint}: {text}", status)


def _error_text(said: Mapping[str, Any]) -> str:
    error = said.get("error")
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
