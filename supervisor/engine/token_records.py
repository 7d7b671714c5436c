"""TokenRecords: the multiplexed token fd's bytes as pairs, many at once.

The same format as luce.protocol.TokenDecoder (a test holds them equal), without an object a record: this is the one
path that every token of every stream takes. Knows records, not requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

_RECORD = Struct("<ii")


class TokenRecords:
    """Holds the part of a record that has come so far."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, int]]:
        """(request id, value) of each record that is complete now."""
        if self._rest:
            data = self._rest + data
        n_whole = len(data) // _RECORD.size * _RECORD.size
        if n_whole == len(data):
            self._rest = b""
            return _RECORD.iter_unpack(data)
        self._rest = data[n_whole:]
        return _RECORD.iter_unpack(data[:n_whole])
