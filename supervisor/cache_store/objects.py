"""What an object of the store is: a file of a disk cache, and behind it a seal over the content and the object's name.

Pure. A seal that does not fit means that the object was cut, changed, or put under another's name; it is no signature:
whoever may write to the store is trusted. Formats of the files themselves are the engine's business, which checks them
once more.
"""

from __future__ import annotations

import re
from hashlib import sha256

from luce.supervisor.prefix_cache.page_names import MemoryFile

_MAGIC = b"LUCEOBJ1"
SEAL_BYTES = len(_MAGIC) + sha256().digest_size
_PATH = re.compile(r"([0-9a-f]{32})/([0-9a-f]{2})/([^/]+)")


class DamagedObjectError(Exception):
    """It is not what its name says."""


def object_path(identity: str, file: MemoryFile) -> str:
    """Below the store's prefix; as the file lies in a disk cache."""
    return f"{identity}/{file.folder}/{file.name}"


def parse_path(path: str) -> tuple[str, MemoryFile] | None:
    """The identity and the file; nothing, if it is no path of ours."""
    match = _PATH.fullmatch(path)
    file = None if match is None else MemoryFile.of(match[3])
    if match is None or file is None or file.folder != match[2]:
        return None
    return match[1], file


def sealed(path: str, content: bytes) -> bytes:
    return b"".join((content, _MAGIC, _digest(path, content)))


def opened(path: str, data: memoryview) -> memoryview:
    """The content. Raises DamagedObjectError."""
    content, seal = data[:-SEAL_BYTES], bytes(data[-SEAL_BYTES:])
    if len(seal) < SEAL_BYTES or not seal.startswith(_MAGIC):
        raise DamagedObjectError("it is cut, or no object of luce-daemon's")
    if seal[len(_MAGIC) :] != _digest(path, content):
        raise DamagedObjectError("its checksum does not fit its content and its name")
    return content


def _digest(path: str, content: bytes | memoryview) -> bytes:
    digest = sha256(path.encode() + b"\0")
    digest.update(content)
    return digest.digest()
