"""PrefixDigest: a bounded set of the names of pages, small enough to be told every few seconds. Pure.

It must not know what the names stand for.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Collection, Iterable
from typing import Self

_N_HASHES = 4
_BITS_A_NAME = 8
_LEAST_BYTES, _MOST_BYTES = 512, 64 << 10


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
    first, second = struct.unpack_from("<2I", name)  # names are hashes
    return [(first + number * (second | 1)) % n_bits for number in range(_N_HASHES)]
