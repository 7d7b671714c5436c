"""Names of a text's beginnings, which say that two texts begin alike without saying how; and PrefixDigest, a bounded
set of them.

A name stands for all tokens before it. What holds texts and what asks for them make the same names of the same tokens.
Pure; it must not know who remembers what.
"""

from __future__ import annotations

import base64
import struct
from array import array
from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b, sha256
from typing import Self

from luce.supervisor.requests import TextSalt

NAME_BYTES = 8
PAGE_TOKENS = 64
"""Of every engine (kPageSize in native/memory)."""
_N_SALTED = 4
_FIRST_SALTED_NAME = 1 << 30
_N_HASHES = 4
_BITS_A_NAME = 8
_LEAST_BYTES, _MOST_BYTES = 512, 64 << 10

ROOT = b""
"""The name before a text's first token."""


def next_name(before: bytes, page: bytes) -> bytes:
    """`page`: the next tokens, four bytes each."""
    return blake2b(page, digest_size=NAME_BYTES, key=before).digest()


def prefix_names(tokens: Sequence[int], *, stride: int, salt: TextSalt | None = None) -> list[bytes]:
    """Of a text's beginnings of `stride` tokens, of twice as many and so on. REQUIRES: the stride is whole pages."""
    data = array("i", tokens if salt is None else _salted(tokens, salt)).tobytes()
    n_bytes = 4 * PAGE_TOKENS
    names, name = [], ROOT
    pages_a_stride = stride // PAGE_TOKENS
    for number in range(len(data) // n_bytes):
        name = next_name(name, data[number * n_bytes : (number + 1) * n_bytes])
        if (number + 1) % pages_a_stride == 0:
            names.append(name)
    return names


def _salted(tokens: Sequence[int], salt: TextSalt) -> list[int]:
    """The text as an engine's memory knows it (native/memory/pages/text_salt.cpp)."""
    names = list(tokens)
    for number in range(min(_N_SALTED, max(len(names) - salt.begin, 0))):
        place = salt.begin + number
        hashed = sha256(b"salt of a text" + struct.pack("<3Q", salt.value, number, names[place])).digest()
        names[place] = _FIRST_SALTED_NAME | int.from_bytes(hashed[:4], "little") % _FIRST_SALTED_NAME
    return names


class PrefixDigest:
    """A Bloom filter: it may know a name too many, never one too few."""

    def __init__(self, bits: bytes) -> None:
        self._bits = bits
        self._n_bits = 8 * len(bits)

    @classmethod
    def of(cls, names: Collection[bytes]) -> Self:
        n_bytes = min(max(len(names) * _BITS_A_NAME // 8, _LEAST_BYTES), _MOST_BYTES)
        bits = bytearray(n_bytes)
        for name in names:
            for place in _places(name, 8 * n_bytes):
                bits[place >> 3] |= 1 << (place & 7)
        return cls(bytes(bits))

    @classmethod
    def from_text(cls, text: str) -> Self:
        return cls(base64.b64decode(text))

    def to_text(self) -> str:
        return base64.b64encode(self._bits).decode()

    def __contains__(self, name: bytes) -> bool:
        return all(self._bits[place >> 3] & 1 << (place & 7) for place in _places(name, self._n_bits))


def _places(name: bytes, n_bits: int) -> Iterable[int]:
    first, second = struct.unpack("<2I", name)
    return [(first + number * (second | 1)) % n_bits for number in range(_N_HASHES)]
