"""PromptFile: a long prompt on its way to an engine, as a private file that its command names.

A line of the protocol holds 16 MiB, and both sides would read and write every digit of it. Owns the file; knows nothing
of requests.
"""

from __future__ import annotations

import os
import sys
import tempfile
from array import array
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from luce.protocol import LocalProtocolError

_MAX_INT32 = 2**31 - 1


class PromptFile:
    """Readable by this user only, there until `remove`."""

    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def write(cls, prompt: Sequence[int]) -> Self:
        """Raises LocalProtocolError for what is no token id, OSError where there is no room for temporary files."""
        if min(prompt, default=0) < 0 or max(prompt, default=0) > _MAX_INT32:
            raise LocalProtocolError("a token id of the prompt is outside 0 .. 2^31-1")
        ids = array("i", prompt)
        if sys.byteorder == "big":
            ids.byteswap()
        fd, path = tempfile.mkstemp(prefix="luce-prompt-", suffix=".bin")
        file = cls(path)
        try:
            with os.fdopen(fd, "wb") as stream:
                ids.tofile(stream)
        except BaseException:
            file.remove()
            raise
        return file

    def remove(self) -> None:
        """Safe to call twice."""
        with suppress(OSError):
            Path(self.path).unlink()
