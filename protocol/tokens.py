"""The token fd's bytes: int32, little endian. Knows records, not what was asked for.

Plain dialect: bare values, -1 ends a command. Multiplexed: request id, then value. The sentinel exists only in here:
outside, the end of a request is an event of its own.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import StrEnum

from .errors import LocalProtocolError, RemoteProtocolError

SENTINEL = -1
MAX_INT32 = (1 << 31) - 1

# What a reader has already taken from the front of the buffer is dropped only when it is worth a move.
_COMPACT_BYTES = 1 << 16


class Dialect(StrEnum):
    PLAIN = "plain"
    MULTIPLEXED = "multiplexed"


@dataclass(frozen=True, slots=True)
class Token:
    id: int
    """The request; 0 in the plain dialect."""
    value: int


@dataclass(frozen=True, slots=True)
class End:
    id: int


TokenEvent = Token | End

_RECORDS = {Dialect.PLAIN: struct.Struct("<i"), Dialect.MULTIPLEXED: struct.Struct("<ii")}


class TokenDecoder:
    def __init__(self, dialect: Dialect) -> None:
        self._record = _RECORDS[dialect]
        self._buffer = bytearray()
        self._offset = 0

    @property
    def n_pending_bytes(self) -> int:
        """Bytes that were fed and not yet taken as events: at the end of a good stream, none."""
        return len(self._buffer) - self._offset

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next_event(self) -> TokenEvent | None:
        """The next event, or nothing until more bytes come.

        Raises RemoteProtocolError at a record that no daemon may send, and again at every later call: after it the
        stream means nothing.
        """
        if self.n_pending_bytes < self._record.size:
            return None
        *ids, value = self._record.unpack_from(self._buffer, self._offset)
        request_id: int = ids[0] if ids else 0
        if request_id < 0 or value < SENTINEL:
            raise RemoteProtocolError(f"token record with id {request_id} and value {value}")
        self._advance()
        return End(request_id) if value == SENTINEL else Token(request_id, value)

    def finish(self) -> None:
        """End of the stream. Raises RemoteProtocolError if it ends inside a record."""
        if self.n_pending_bytes % self._record.size:
            raise RemoteProtocolError(f"the token stream ends inside a record, {self.n_pending_bytes} bytes left")

    def _advance(self) -> None:
        self._offset += self._record.size
        if self._offset == len(self._buffer) or self._offset >= _COMPACT_BYTES:
            del self._buffer[: self._offset]
            self._offset = 0


def format_event(dialect: Dialect, event: TokenEvent) -> bytes:
    value = SENTINEL if isinstance(event, End) else event.value
    if not 0 <= event.id <= MAX_INT32 or not SENTINEL <= value <= MAX_INT32:
        raise LocalProtocolError(f"{event} does not fit into a token record")
    if isinstance(event, Token) and value == SENTINEL:
        raise LocalProtocolError("a token is 0 or more; -1 would end the request")
    if dialect is Dialect.PLAIN:
        return _RECORDS[dialect].pack(value)
    return _RECORDS[dialect].pack(event.id, value)
