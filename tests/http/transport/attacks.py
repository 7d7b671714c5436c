"""What somebody who means harm sends: by a page, by a hand-made request, by a program. Bytes, and what must come of
them. A key that may do everything is in each request, so that nothing but what is tried stands in its way, save where
the key itself is what is tried.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from dataclasses import dataclass
from typing import Any

KEY = "the-owners-key"
MAX_BODY = 1 << 20
CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}


@dataclass(frozen=True)
class Attack:
    name: str
    request: bytes
    statuses: frozenset[int]
    """One of these answers it. 0: the connection is closed without a word."""
    n_answers: int = 1
    """No more come: what is hidden behind a request is not answered as one of its own."""


def head(method: str, path: str, *headers: str, key: str | None = KEY, host: str | None = "localhost") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *headers, "Connection: close"]
    if host is not None:
        lines.insert(1, f"Host: {host}")
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")


def post(body: Any, *headers: str, path: str = CHAT, key: str | None = KEY, host: str | None = "localhost") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head("POST", path, f"Content-Length: {len(data)}", *headers, key=key, host=host) + data


def get(path: str, *headers: str, key: str | None = KEY, host: str | None = "localhost") -> bytes:
    return head("GET", path, *headers, key=key, host=host)


def said(**fields: Any) -> bytes:
    return post({**HELLO, **fields})


def chunked(data: bytes, *headers: str) -> bytes:
    return head("POST", CHAT, "Transfer-Encoding: chunked", *headers) + data


HIDDEN = get("/v1/models")
"""A request of its own, where the server takes the one before it for ended sooner than a proxy does."""
_EVIL = "Origin: http://evil.example"
_DEEP = b'{"messages":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
_BOMB = gzip.compress(b" " * (64 << 20))
_HASH = hashlib.sha256(KEY.encode()).hexdigest()
_GRAMMAR = "root ::= " + "(" * 2000 + '"a"' + ")*" * 2000

_ATTACKS: tuple[tuple[str, bytes, tuple[int, ...]], ...] = (
    # Names that have been pointed at this machine
    ("host", get("/v1/models", host="evil.example"), (403,)),
    ("host with the right port", get("/v1/models", host="evil.example:8080"), (403,)),
    ("host that begins well", get("/v1/models", host="localhost.evil.example"), (403,)),
    ("host behind a user", get("/v1/models", host="localhost@evil.example"), (400, 403)),
    ("host as a number", get("/v1/models", host="2130706433"), (403,)),
    ("two hosts", get("/v1/models", "Host: evil.example"), (400,)),
    ("no host", get("/v1/models", host=None), (400,)),
    ("host in the target", get("http://evil.example/v1/models"), (403,)),
    ("host said by a proxy", get("/v1/models", "X-Forwarded-Host: localhost", host="evil.example"), (403,)),
    ("host with a space", get("/v1/models", "Host : localhost", host=None), (400,)),
    # Pages of others
    ("simple request of a page", post(HELLO, _EVIL, "Content-Type: text/plain"), (403,)),
    ("form of a page", post(b"a=b", _EVIL, "Content-Type: application/x-www-form-urlencoded"), (403,)),
    ("page in a sandbox", post(HELLO, "Origin: null"), (403,)),
    ("page of another port", post(HELLO, "Origin: http://localhost:3000"), (403,)),
    ("image on a page", get("/v1/models", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"), (403,)),
    ("frame in a page", get("/", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate",
                            "Sec-Fetch-Dest: iframe"), (403,)),
    ("form that opens a page", post(HELLO, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate",
                                    "Sec-Fetch-Dest: document"), (403,)),
    ("preflight", head("OPTIONS", CHAT, _EVIL, "Access-Control-Request-Method: POST"), (403,)),
    ("web socket of a page", get("/", _EVIL, "Connection: Upgrade", "Upgrade: websocket",
                                 "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version: 13"), (403,)),
    # Methods
    ("trace", head("TRACE", "/v1/models"), (404, 405)),
    ("connect", head("CONNECT", "evil.example:80"), (400, 403, 404, 405)),
    ("put", head("PUT", CHAT), (405,)),
    ("another method in a header", get(CHAT, "X-HTTP-Method-Override: POST"), (405,)),
    ("no method", head("\x00SECRET", "/v1/models"), (400,)),
    # Encodings
    ("gzip bomb", post(_BOMB, "Content-Encoding: gzip"), (413,)),
    ("not gzip", post(b"not gzip", "Content-Encoding: gzip"), (400,)),
    ("unknown encoding", post(HELLO, "Content-Encoding: zpaq"), (400,)),
    ("utf-16", post(json.dumps(HELLO).encode("utf-16")), (200,)),
    ("bytes that are no text", post(b'{"messages": "\xff\xfe"}'), (400,)),
    ("half a surrogate pair", post(b'{"max_tokens": 4, "messages": [{"role": "user", "content": "\\ud800"}]}'), (200,)),
    ("one name twice", post(b'{"messages": [], "messages": []}'), (400,)),
    ("deep nesting", post(_DEEP), (400,)),
    # Requests behind requests
    ("length and chunks", head("POST", CHAT, "Content-Length: 4", "Transfer-Encoding: chunked") + b"0\r\n\r\n" + HIDDEN,
     (400,)),
    ("two lengths", head("POST", CHAT, "Content-Length: 4", "Content-Length: 400") + b"{}  " + HIDDEN, (400,)),
    ("length with a sign", head("POST", CHAT, "Content-Length: +4") + b"{}  " + HIDDEN, (400,)),
    ("length below zero", head("POST", CHAT, "Content-Length: -1") + HIDDEN, (400,)),
    ("chunks by another name", head("POST", CHAT, "Transfer-Encoding: xchunked") + b"0\r\n\r\n" + HIDDEN, (400, 501)),
    ("chunks before identity", head("POST", CHAT, "Transfer-Encoding: chunked, identity") + b"0\r\n\r\n" + HIDDEN,
     (400,)),
    ("chunk of no size", chunked(b"zz\r\n{}\r\n0\r\n\r\n"), (400,)),
    ("chunk below zero", chunked(b"-1\r\n{}\r\n0\r\n\r\n"), (400,)),
    ("line feed in a header", head("POST", CHAT, "X: a\nContent-Length: 4") + b"{}  " + HIDDEN, (400,)),
    ("folded header", get("/v1/models", "X: SECRET\r\n Transfer-Encoding: chunked"), (400,)),
    ("header without a colon", get("/v1/models", "SECRET"), (400,)),
    ("nothing in a header's name", get("/v1/models", ": a"), (400,)),
    ("zero byte in a header", get("/v1/models", "X: SECRET\x00b"), (400,)),
    # Paths
    ("path upwards", get("/../../../../etc/passwd"), (404,)),
    ("path upwards in code", get("/%2e%2e/%2e%2e/etc/passwd"), (404,)),
    ("path upwards in code twice", get("/static/..%252f..%252fetc%252fpasswd"), (404,)),
    ("path upwards behind a file", get("/static/..%2f..%2f..%2fsettings.py"), (404,)),
    ("file upwards", post({"filename": "../evil"}, path="/slots/0?action=save"), (400,)),
    ("file elsewhere", post({"filename": "/tmp/evil"}, path="/slots/0?action=save"), (400,)),
    ("file with a zero", post({"filename": "a\x00b"}, path="/slots/0?action=restore"), (400,)),
    ("image in a file", said(messages=[{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]), (400,)),
    ("image elsewhere", said(messages=[{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest/meta-data/"}}]}]), (400,)),
    # Keys
    ("no key", post(HELLO, key=None), (401,)),
    ("empty key", post(HELLO, key=""), (401,)),
    ("wrong key", post(HELLO, key="the-owners-kez"), (401,)),
    ("beginning of the key", post(HELLO, key=KEY[:-1]), (401,)),
    ("key and more", post(HELLO, key=KEY + "x"), (401,)),
    ("key in capitals", post(HELLO, key=KEY.upper()), (401,)),
    ("hash of the key", post(HELLO, key=_HASH), (401,)),
    ("hash as it is filed", post(HELLO, key=f"sha256:{_HASH}"), (401,)),
    ("key in the address", get(f"/v1/models?key={KEY}&api_key={KEY}", key=None), (401,)),
    ("key in a cookie", get("/v1/models", f"Cookie: key={KEY}", key=None), (401,)),
    ("key as a user", get("/v1/models", "Authorization: Basic "
                          + base64.b64encode(f"{KEY}:".encode()).decode(), key=None), (401,)),
    ("a hundred guesses at once", get("/v1/models", *(f"x-api-key: {n}" for n in range(100)), key=None), (401,)),
    ("open path with more behind it", get("/health/../v1/models", key=None), (401,)),
    ("open path in another case", get("/HEALTH", key=None), (401,)),
    # Too much of everything
    ("long target", get("/" + "a" * 40_000), (400, 414)),
    ("long header", get("/v1/models", "X: " + "a" * 40_000), (400, 431)),
    ("many headers", get("/v1/models", *(f"X-{n}: a" for n in range(1000))), (400, 431)),
    ("long body", head("POST", CHAT, f"Content-Length: {1 << 40}"), (413,)),
    ("length of many digits", head("POST", CHAT, "Content-Length: " + "9" * 100), (400, 413)),
    ("chunks without end", chunked((b"%x\r\n" % MAX_BODY + b" " * MAX_BODY + b"\r\n") * 2), (413,)),
    ("chunk with a long note", chunked(b"2;" + b"a" * 40_000 + b"\r\n{}\r\n0\r\n\r\n"), (400, 413)),
    ("many values", post(b'{"messages": [' + b"0," * 400_000 + b"0]}"), (400, 413)),
    ("many messages", said(messages=[{"role": "user", "content": "a"}] * 20_000), (400,)),
    ("many messages to choose from", post({"input": [{"role": "user", "content": "a"}] * 20_000, "truncation": "auto"},
                                          path="/v1/responses"), (400,)),
    ("one long message to choose from", post({"input": "a " * 400_000, "truncation": "auto"}, path="/v1/responses"),
     (400,)),
    ("many names, one of them twice", post(b'{"messages": [], "a": {%b"0": 0}}' % b"".join(
        b'"%d":0,' % number for number in range(90_000))), (400,)),
    ("many streams to look for", post({"conversation_ids": ["x"] * 200_000}, path="/v1/streams/lookup"), (400,)),
    ("many choices", said(n=10**9), (400,)),
    ("a number without end", post(b'{"messages": [], "max_tokens": 1' + b"0" * 100_000 + b"}"), (400,)),
    ("many stops", said(stop=["x" * 20] * 10_000), (400,)),
    ("grammar without end", said(grammar=_GRAMMAR), (400,)),
    ("schema without end", said(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {
        "type": "string", "pattern": "^(a{1,1000}){1,1000}$"}}}), (200, 400)),
    ("pattern without end", said(guided_regex="(" * 5000 + "a" + ")" * 5000), (400,)),
)  # fmt: skip

ATTACKS = tuple(Attack(name, request, frozenset(statuses)) for name, request, statuses in _ATTACKS)
