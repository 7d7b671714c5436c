"""Whatever stands in a request's head: an answer of ours or a closed connection, no 5xx, and the server goes on."""

from __future__ import annotations

import re
import socket
from urllib.parse import urlsplit

import httpx2 as httpx
import hypothesis
from hypothesis import strategies as st

from tests.http.serving import Server

N_SHORT, N_FULL = 40, 5000
DEADLINE_S = 60.0
NAMES = st.sampled_from(
    [b"Host", b"Origin", b"Sec-Fetch-Site", b"Content-Length", b"Transfer-Encoding", b"Content-Encoding", b"Expect",
     b"Connection", b"Upgrade", b"Authorization", b"x-api-key", b"X-Conversation-Id", b"Last-Event-ID", b"x-request-id",
     b"Accept", b"Accept-Encoding", b"If-None-Match", b"Content-Type", b"anthropic-version", b"Range", b"Cookie"]
) | st.binary(max_size=20)  # fmt: skip
VALUES = st.sampled_from(
    [b"localhost", b"evil.example", b"null", b"cross-site", b"0", b"5", b"-1", b"chunked", b"gzip", b"100-continue",
     b"close", b"keep-alive, Upgrade", b"websocket", b"Bearer x", b"Basic !!!", b"bytes=0-5", b"*", b"text/html"]
) | st.binary(max_size=60)  # fmt: skip
TARGETS = st.sampled_from(
    [b"/", b"/health", b"/v1/models", b"/v1/chat/completions", b"/v1/stream?conv_id=a", b"*", b"http://localhost/health"]
) | st.binary(max_size=40)  # fmt: skip
METHODS = st.sampled_from([b"GET", b"POST", b"OPTIONS", b"DELETE", b"HEAD", b"CONNECT"]) | st.binary(max_size=8)
HEADS = st.tuples(METHODS, TARGETS, st.lists(st.tuples(NAMES, VALUES), max_size=8), st.binary(max_size=30))
STATUS = re.compile(rb"^HTTP/1\.[01] ([1-5]\d\d) ")


def answer_to(server: Server, request: bytes) -> bytes:
    """All that comes until the server closes; what is said makes the server's waiting for more end."""
    parts = urlsplit(server.url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), DEADLINE_S) as connection:
        received = b""
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(1 << 16):
                received += piece
        except ConnectionError:
            pass
        return received


def test_heads_of_all_kinds(server: Server, full: bool) -> None:
    @hypothesis.given(HEADS)
    @hypothesis.settings(max_examples=N_FULL if full else N_SHORT, deadline=None)
    def check(parts: tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes]) -> None:
        method, target, headers, rest = parts
        lines = [method + b" " + target + b" HTTP/1.1", *(name + b": " + value for name, value in headers)]
        answer = answer_to(server, b"\r\n".join([*lines, b"", b""]) + rest)
        status = STATUS.match(answer)
        assert not answer or status is not None, answer[:200]
        assert status is None or int(status[1]) < 500 or int(status[1]) == 501, answer[:500]

    check()
    assert httpx.get(f"{server.url}/health", timeout=DEADLINE_S).status_code == 200
    assert server.supervisor.status().engines[0].n_deaths == 0
