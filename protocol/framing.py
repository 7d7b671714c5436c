"""Bytes in, lines out. Knows framing only, not what a line says.

`\\n` ends a line, one `\\r` before it is dropped, blank lines are skipped, and a line over the limit is reported once
and swallowed up to its end. A line's length counts every byte before its `\\n`, so that the verdict is the same however
the bytes arrive.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

MAX_LINE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class DecodedLine:
    text: bytes = b""
    too_long: bool = False
    """The line was over the limit; `text` is empty then."""


class LineDecoder:
    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_line_bytes = max_line_bytes
        self._partial = bytearray()
        self._overflowed = False
        self._ready: deque[DecodedLine] = deque()

    def feed(self, data: bytes) -> None:
        *ended, rest = data.split(b"\n")
        for piece in ended:
            self._append(piece)
            self._end_line()
        self._append(rest)

    def finish(self) -> None:
        """End of input: a last line without its `\\n` counts as one."""
        if self._overflowed or self._partial:
            self._end_line()

    def next_line(self) -> DecodedLine | None:
        """The next complete line, oldest first."""
        return self._ready.popleft() if self._ready else None

    def _append(self, piece: bytes) -> None:
        if len(self._partial) + len(piece) > self._max_line_bytes:
            self._overflowed = True
            self._partial.clear()
        if not self._overflowed:
            self._partial += piece

    def _end_line(self) -> None:
        text = bytes(self._partial).removesuffix(b"\r")
        too_long = self._overflowed
        self._partial.clear()
        self._overflowed = False
        if too_long:
            self._ready.append(DecodedLine(too_long=True))
        elif text.strip(b" \t"):
            self._ready.append(DecodedLine(text))
