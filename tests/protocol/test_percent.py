"""Percent-encoding against the standard library's, which does the same more slowly."""

from __future__ import annotations

from urllib.parse import quote_from_bytes

from hypothesis import given
from hypothesis import strategies as st

from luce.protocol.percent import percent_decode, percent_encode


def check(text: str) -> None:
    data = text.encode("utf-8", "replace")
    encoded = percent_encode(text)
    assert encoded == quote_from_bytes(data, safe="-._~/:,@+=")
    assert percent_decode(encoded.encode("ascii")) == data


def test_each_character() -> None:
    for code in range(0x250):
        check(chr(code))
    check("".join(map(chr, range(0x250))))


@given(st.text(st.characters()))
def test_any_text(text: str) -> None:
    check(text)
