"""Token ids as bytes of a pipe: int32, little endian, or decimal numbers. Pure: bytes in, ids out."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

from luce.supervisor.cli.entry import EXIT_BAD_ARGS, Failure

_MAX_DIGITS = 10  # of an int32
_MAX_INT32 = 2**31 - 1


class IdReader:
    """Reads ids from bytes that come in pieces of any size. Raises Failure at what is none."""

    def __init__(self, *, as_text: bool, source: str = "stdin") -> None:
        self._as_text = as_text
        self._source = source
        self._rest = b""

    def feed(self, data: bytes) -> array[int]:
        """The ids that are complete by now."""
        data = self._rest + data
        if self._as_text:
            data = data.replace(b",", b"\n")
            end = max(data.rfind(separator) for separator in (b" ", b"\n", b"\t", b"\r")) + 1
        else:
            end = len(data) - len(data) % 4
        self._rest = data[end:]
        return _decimal_ids(data[:end], self._source) if self._as_text else _binary_ids(data[:end])

    def finish(self) -> array[int]:
        """The last id, where nothing but the end of the input ends it."""
        rest, self._rest = self._rest, b""
        if self._as_text:
            return _decimal_ids(rest, self._source)
        if rest != b"":
            raise Failure(
                f"stdin ends with {len(rest)} bytes too many for int32 ids; decimal ids need --text-ids", EXIT_BAD_ARGS
            )
        return array("i")


def read_ids(data: bytes, *, as_text: bool, source: str = "stdin") -> tuple[int, ...]:
    """All ids of `data`, which came from `source`. Raises Failure."""
    reader = IdReader(as_text=as_text, source=source)
    return (*reader.feed(data), *reader.finish())


def encode_ids(ids: Iterable[int], *, as_text: bool) -> bytes:
    """The bytes that IdReader reads."""
    if as_text:
        return b"".join(b"%d\n" % token for token in ids)
    encoded = array("i", ids)
    if sys.byteorder == "big":
        encoded.byteswap()
    return encoded.tobytes()


def _binary_ids(data: bytes) -> array[int]:
    ids = array("i")
    ids.frombytes(data)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


def _decimal_ids(data: bytes, source: str) -> array[int]:
    ids = array("i")
    for word in data.split():
        # isdigit of bytes is ASCII only
        if not word.isdigit() or len(word) > _MAX_DIGITS or int(word) > _MAX_INT32:
            shown = word[:20].decode("ascii", errors="backslashreplace")
            raise Failure(f"{source} held {shown!r}, which is no decimal token id", EXIT_BAD_ARGS)
        ids.append(int(word))
    return ids
