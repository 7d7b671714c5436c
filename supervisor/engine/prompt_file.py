"""PromptFile: a long prompt on its way to an engine, as a file that its command names.

A line of the protocol holds 16 MiB, and both sides would read and write every digit of it. The file lies in memory and
has a name only as long as this process holds it open: however the process ends, nothing is left behind. Owns the file;
knows nothing of requests.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Sequence
from typing import Self

from luce.protocol import LocalProtocolError

_OUTSIDE = "a token id of the prompt is outside 0 .. 2^31-1"


class PromptFile:
    """There until `remove`, for processes of this user."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        self.path = f"/proc/{os.getpid()}/fd/{fd}"

    @classmethod
    def write(cls, prompt: Sequence[int]) -> Self:
        """Raises LocalProtocolError for what is no token id, OSError where there is no memory for it."""
        try:
            ids = prompt if isinstance(prompt, array) and prompt.typecode == "i" else array("i", prompt)
        except OverflowError:
            raise LocalProtocolError(_OUTSIDE) from None
        if sys.byteorder == "big":
            ids = array("i", ids)
            ids.byteswap()
        data = ids.tobytes()
        if not data[ids.itemsize - 1 :: ids.itemsize].isascii():  # the highest bit of each last byte is the sign
            raise LocalProtocolError(_OUTSIDE)
        fd = os.memfd_create("luce-prompt")
        try:
            with os.fdopen(fd, "wb", closefd=False) as stream:
                stream.write(data)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd)

    def remove(self) -> None:
        """Safe to call twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
