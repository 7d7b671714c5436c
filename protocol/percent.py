"""Percent-encoding (RFC 3986, section 2.1), because values hold no spaces. Must not know which value it is."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_PLAIN = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/:,@+="


def percent_encode(text: str) -> str:
    """Letters, digits and `-._~/:,@+=` stay; every other byte of the UTF-8 becomes %XX."""
    data = text.encode("utf-8", "replace")
    escaped = set(data.translate(None, _PLAIN))
    # A byte's kind at a time: grammars of a megabyte come by, with few kinds of them. "%" first, since it is put in.
    for byte in sorted(escaped, key=lambda byte: byte != ord("%")):
        data = data.replace(bytes([byte]), b"%%%02X" % byte)
    return data.decode("ascii")


def percent_decode(text: bytes) -> bytes | None:
    """Nothing if a `%` is not followed by two hexadecimal digits."""
    return None if _BROKEN_ESCAPE.search(text) else unquote_to_bytes(text)
