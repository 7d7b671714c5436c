"""Compressed bodies: what they were before, or a refusal that names the encoding, within the limit of a body."""

from __future__ import annotations

import gzip
import json
import logging
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import brotli
import httpx2 as httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.supervisor.http.transport.content_encoding import (
    MAX_MEMBERS,
    MAX_STACKED,
    BadEncodingError,
    TooLongError,
    decoded,
    encodings_of,
)
from tests.http.conftest import MakeServer
from tests.http.raw_client import post, raw_client
from tests.http.serving import Server

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Compress = Callable[[bytes], bytes]
LIMIT = 1 << 20
TEXT = b'{"input": "hi"}' * 20
ORIGIN = "https://mine.example"


def without_header(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


ENCODINGS: list[tuple[str, Compress]] = [
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("GZip", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", without_header),
    ("br", brotli.compress),
    ("zstd", zstd.compress),
    ("gzip, zstd", lambda data: zstd.compress(gzip.compress(data))),
    ("br,identity,deflate", lambda data: zlib.compress(brotli.compress(data))),
    ("identity", bytes),
    ("", bytes),
    ("UTF-8", bytes),
]
COMPRESSED = [(field, compress) for field, compress in ENCODINGS if compress is not bytes]
SINGLE = [(field, compress) for field, compress in COMPRESSED if "," not in field]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 1},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 1},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/tokenize": {"content": "Hi"},
}


@pytest.mark.parametrize(("field", "compress"), ENCODINGS)
def test_it_is_what_it_was(field: str, compress: Compress) -> None:
    assert decoded(compress(TEXT), encodings_of(field), LIMIT) == TEXT
    assert decoded(b"", encodings_of(field), LIMIT) == b""


@pytest.mark.parametrize(("field", "compress"), SINGLE)
def test_what_is_cut_or_wrong_is_told_of(field: str, compress: Compress) -> None:
    whole = compress(TEXT)
    for wrong in (whole[:-1], whole[: len(whole) // 2], whole[:1], b"x" + whole, whole + b"more", TEXT, b"\0" * 9):
        with pytest.raises(BadEncodingError, match=encodings_of(field)[0]):
            decoded(wrong, encodings_of(field), LIMIT)


@pytest.mark.parametrize(("field", "compress"), COMPRESSED)
def test_it_is_as_long_as_the_limit_at_most(field: str, compress: Compress) -> None:
    data = compress(b"a" * LIMIT)
    assert len(decoded(data, encodings_of(field), LIMIT)) == LIMIT
    with pytest.raises(TooLongError):
        decoded(data, encodings_of(field), LIMIT - 1)


@pytest.mark.parametrize("compress", [gzip.compress, zstd.compress])
def test_several_behind_each_other(compress: Compress) -> None:
    name = "gzip" if compress is gzip.compress else "zstd"
    assert decoded(compress(b"a") + compress(b"") + compress(b"b"), [name], LIMIT) == b"ab"
    assert decoded(compress(b"a") * MAX_MEMBERS, [name], LIMIT) == b"a" * MAX_MEMBERS
    with pytest.raises(BadEncodingError, match=name):
        decoded(compress(b"a") * (MAX_MEMBERS + 1), [name], LIMIT)
    with pytest.raises(TooLongError):
        decoded(compress(b"a" * 60) * 2, [name], 100)


def test_padding_behind_gzip() -> None:
    assert decoded(gzip.compress(b"a") + b"\0" * 512, ["gzip"], LIMIT) == b"a"


@pytest.mark.parametrize("field", ["zpaq", "gzip, zpaq", "*", ", ".join(["gzip"] * (MAX_STACKED + 1))])
def test_what_is_unknown_or_too_much(field: str) -> None:
    with pytest.raises(BadEncodingError, match="Content-Encoding"):
        encodings_of(field)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["gzip", "deflate", "br", "zstd"]), st.binary(max_size=200), st.integers(0, 10_000))
def test_any_bytes_are_a_body_or_the_clients_error(name: str, data: bytes, at: int) -> None:
    whole = dict(SINGLE)[name](TEXT)
    cut = at % (len(whole) + 1)
    for body in (data, whole[:cut] + data + whole[cut:]):
        with suppress(BadEncodingError, TooLongError):
            assert len(decoded(body, [name], 1000)) <= 1000


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120) as made:
        yield made


@pytest.mark.parametrize("path", BODIES)
def test_each_api_takes_each_encoding(client: httpx.Client, path: str) -> None:
    for field, compress in ENCODINGS:
        body = compress(json.dumps(BODIES[path]).encode())
        answer = client.post(path, content=body, headers={"Content-Encoding": field})
        assert answer.status_code == 200, (field, answer.text)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_each_api_streams_for_a_compressed_body(client: httpx.Client, path: str) -> None:
    for field, compress in ENCODINGS:
        body = compress(json.dumps({**BODIES[path], "stream": True}).encode())
        answer = client.post(path, content=body, headers={"Content-Encoding": field})
        assert answer.status_code == 200, field
        assert answer.headers["Content-Type"].startswith("text/event-stream")


@pytest.mark.parametrize("path", BODIES)
async def test_each_api_tells_in_its_words_what_is_wrong(
    make_server: MakeServer, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    caplog.set_level(logging.INFO, "luce.http.access")
    async with make_server(cors_origins=(ORIGIN,), max_body_bytes=100_000) as server, raw_client(server.url) as client:

        async def ask(body: bytes, encoding: str) -> tuple[int, dict[str, Any], dict[str, str]]:
            headers = f"Content-Encoding: {encoding}\r\nOrigin: {ORIGIN}\r\n"
            await client.send(post(path, body, headers=headers))
            answer = await client.read_answer()
            assert answer.headers["access-control-allow-origin"] == ORIGIN
            told = answer.json()
            assert (told.get("type") == "error") == (path == "/v1/messages")
            return answer.status, told["error"], answer.headers

        for encoding, compress in SINGLE:
            status, error, _ = await ask(compress(TEXT)[:-1], encoding)
            assert status == 400
            assert encodings_of(encoding)[0] in error["message"]
            assert error["type"] == "invalid_request_error"
        status, error, _ = await ask(b"{}", "zpaq")
        assert status == 400
        assert "zpaq" in error["message"]
        status, error, _ = await ask(b"", "gzip")
        assert (status, "empty" in error["message"]) == (400, True), "the connection has gone on"
        status, error, headers = await ask(zstd.compress(b" " * (64 << 20)), "zstd")
        assert (status, headers["connection"]) == (413, "close")
    said = [record.getMessage() for record in caplog.records if record.name == "luce.http.access"]
    assert len([line for line in said if f"POST {path} 400 refused bad_encoding " in line]) == len(SINGLE) + 1
    assert len([line for line in said if f"POST {path} 413 refused body_too_large " in line]) == 1
