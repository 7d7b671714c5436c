"""The names that an engine's memory gives to a text's pages and checkpoints, and their files on disk. Pure.

A text's names are known without asking an engine: they are hashes of its tokens, of all that stands before, and of the
memory's identity. What is said here is said once more in native/memory/pages (page_name, text_salt) and
native/memory/tiers/disk_file_name; a test holds the two to each other through the files that an engine writes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Self

PAGE_TOKENS = 64
TOKEN_BYTES = 4
NAME_BYTES = 16

_PAGE_BYTES = PAGE_TOKENS * TOKEN_BYTES
_SALTED_TOKENS = 4
_FIRST_SALTED = 1 << 30
_FILE = re.compile(r"([0-9a-f]{32})(?:\.page|-(0|[1-9][0-9]?)-([0-9a-f]{32})\.tail)")


def _hash(before: bytes, tokens: bytes) -> bytes:
    return sha256(before + tokens).digest()[:NAME_BYTES]


def root_name(identity: str) -> bytes:
    """What stands before the first page of each text. `identity`: as the ready line has it."""
    return _hash(b"luce memory root\n", identity.encode())


def page_names(key: bytes, identity: str) -> Iterator[bytes]:
    """Of the whole pages of a text (packed, and salted if it is), from the first on."""
    name = root_name(identity)
    for begin in range(0, len(key) - _PAGE_BYTES + 1, _PAGE_BYTES):
        name = _hash(name, key[begin : begin + _PAGE_BYTES])
        yield name


def checkpoint_name(page: bytes, rest: bytes) -> bytes:
    """Of the checkpoint that stands so many (packed) tokens behind a page, fewer than a page has."""
    return _hash(page, rest)


def salted(key: bytes, salt: int, begin: int) -> bytes:
    """The same text for those with one salt, from a token on: whose prefixes longer than that are nobody else's."""
    at = begin * TOKEN_BYTES
    end = min(at + _SALTED_TOKENS * TOKEN_BYTES, len(key))
    names = []
    for i, place in enumerate(range(at, end, TOKEN_BYTES)):
        (token,) = struct.unpack_from("<I", key, place)
        (value,) = struct.unpack_from("<I", sha256(b"salt of a text" + struct.pack("<3Q", salt, i, token)).digest())
        names.append(struct.pack("<I", _FIRST_SALTED | value % _FIRST_SALTED))
    return key[:at] + b"".join(names) + key[max(at, end) :]


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """A file of a disk cache: a page, or the checkpoint that stands behind one."""

    page: bytes
    checkpoint: bytes | None = None
    n_rest: int = 0
    """Tokens between the page's end and the checkpoint."""

    @property
    def name(self) -> str:
        page = self.page.hex()
        return f"{page}.page" if self.checkpoint is None else f"{page}-{self.n_rest}-{self.checkpoint.hex()}.tail"

    @property
    def folder(self) -> str:
        """Below the identity's."""
        return self.page.hex()[:2]

    @classmethod
    def of(cls, name: str) -> Self | None:
        """Nothing, if it is no name of such a file."""
        match = _FILE.fullmatch(name)
        if match is None:
            return None
        page = bytes.fromhex(match[1])
        if match[3] is None:
            return cls(page)
        n_rest = int(match[2])
        return cls(page, bytes.fromhex(match[3]), n_rest) if n_rest < PAGE_TOKENS else None
