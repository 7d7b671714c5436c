"""What comes from outside: standard input and files, read whole, and texts, which have to be UTF-8.

Turns what is wrong with them into a Failure that says where. Knows bytes and texts only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from luce.supervisor.cli.entry import EXIT_BAD_ARGS, EXIT_REFUSED, Failure

STDIN = "standard input"

_READ_BYTES = 1 << 16
_STDIN_FD = 0


def stdin_chunks() -> Iterator[bytes]:
    """What comes on stdin, as it comes. Raises Failure."""
    if sys.stdin is None:
        raise Failure(f"{STDIN} is closed: put a program or a file before it", EXIT_BAD_ARGS)
    try:
        while (data := os.read(_STDIN_FD, _READ_BYTES)) != b"":
            yield data
    except OSError as error:
        raise Failure(f"{STDIN} cannot be read: {error.strerror}", EXIT_REFUSED) from None


def read_stdin() -> bytes:
    """All of stdin. Raises Failure."""
    return b"".join(stdin_chunks())


def read_file(path: Path) -> bytes:
    """All of a file. Raises Failure."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}", EXIT_BAD_ARGS) from None


def utf8(data: bytes, source: str) -> str:
    """The text that `data` is. Raises Failure with the place where it is none."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Failure(
            f"{source} is not UTF-8 text: byte 0x{data[error.start]:02x} at offset {error.start}", EXIT_BAD_ARGS
        ) from None


def utf8_argument(argument: str, source: str) -> str:
    """The same for an argument of the command line, which Python hands on with what is no text escaped."""
    return utf8(os.fsencode(argument), source)
