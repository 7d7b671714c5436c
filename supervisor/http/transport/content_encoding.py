"""What a body with a Content-Encoding was before it was compressed: gzip, deflate, br and zstd, one or several.

Pure. It must not know requests: `body` reads the bytes and tells the client what is wrong with them.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from typing import Protocol

import brotli

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdDecompressor, ZstdError
else:
    from backports.zstd import ZstdDecompressor, ZstdError

MAX_STACKED = 4  # encodings of one body
MAX_MEMBERS = 100  # gzip members or zstd frames of one body; each costs a copy of what stands behind it
_NONE = frozenset({"", "identity", "utf-8"})  # some clients mistake the field for the one of the character set
_ALIASES = {"x-gzip": "gzip"}
_RAW, _GZIP = -zlib.MAX_WBITS, 16 + zlib.MAX_WBITS


class BadEncodingError(ValueError):
    """The body cannot be decoded. The text names the encoding, and is for the client."""


class TooLongError(ValueError):
    """The decoded body is longer than the limit."""


class _Decompressor(Protocol):
    """As the standard library has them. `decompress` gives at most `max_length` bytes."""

    def decompress(self, data: bytes, /, max_length: int) -> bytes: ...

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...


def encodings_of(field: str) -> list[str]:
    """The encodings that a Content-Encoding field names, in the order in which they were applied. Raises
    BadEncodingError."""
    names = [name.strip().lower() for name in field.split(",")]
    encodings = [_ALIASES.get(name, name) for name in names if name not in _NONE]
    for name in encodings:
        if name not in _DECODERS:
            raise BadEncodingError(f"Content-Encoding {name[:40]!r} is not known: use {', '.join(_DECODERS)} or none")
    if len(encodings) > MAX_STACKED:
        raise BadEncodingError(f"Content-Encoding names {len(encodings)} encodings: {MAX_STACKED} is the most")
    return encodings


def decoded(data: bytes, encodings: list[str], limit: int) -> bytes:
    """The body, of at most `limit` bytes after each step. An empty body stays empty. Raises BadEncodingError,
    TooLongError."""
    for name in reversed(encodings):
        if data:
            try:
                data = _DECODERS[name](data, limit)
            except (zlib.error, brotli.error, ZstdError, EOFError) as error:
                raise BadEncodingError(f"the body cannot be decoded as {name}: {error}") from error
    return data


def _gzip(data: bytes, limit: int) -> bytes:
    return _members(lambda: zlib.decompressobj(_GZIP), data, limit)


def _zstd(data: bytes, limit: int) -> bytes:
    return _members(ZstdDecompressor, data, limit)


def _deflate(data: bytes, limit: int) -> bytes:
    """With zlib's header as the standard has it, or without, as some clients send it."""
    try:
        return _members(zlib.decompressobj, data, limit)
    except zlib.error:
        return _members(lambda: zlib.decompressobj(_RAW), data, limit)


def _br(data: bytes, limit: int) -> bytes:
    decompressor = brotli.Decompressor()
    body = bytes(decompressor.process(data, output_buffer_limit=limit + 1))
    return _whole(body, limit, is_whole=decompressor.is_finished())


def _members(make: Callable[[], _Decompressor], data: bytes, limit: int) -> bytes:
    """One or more streams behind each other; zero bytes behind the last are padding."""
    body = b""
    for _ in range(MAX_MEMBERS):
        member = make()
        body += member.decompress(data, max_length=limit - len(body) + 1)
        body = _whole(body, limit, is_whole=member.eof)
        data = member.unused_data
        if not data.strip(b"\0"):
            return body
    raise EOFError(f"more than {MAX_MEMBERS} streams stand behind each other")


def _whole(body: bytes, limit: int, *, is_whole: bool) -> bytes:
    if len(body) > limit:
        raise TooLongError
    if not is_whole:
        raise EOFError("it is cut short")
    return body


_DECODERS: dict[str, Callable[[bytes, int], bytes]] = {"gzip": _gzip, "deflate": _deflate, "br": _br, "zstd": _zstd}
