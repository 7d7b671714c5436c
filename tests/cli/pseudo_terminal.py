"""A command of ours in a terminal: what a person would type and see. Knows ptys; nothing of what is shown."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from tests.cli.conftest import TIMEOUT_S

ROWS, COLUMNS = 24, 100
EDITS = b"\x1b[?2004h"
"""What an editor says once it waits for keys: pasted text shall be marked."""


class Terminal:
    """Reads all the time, as terminals do: an editor waits until what it has written is on the screen."""

    def __init__(self, popen: subprocess.Popen[bytes], fd: int) -> None:
        self.popen, self._fd, self._seen = popen, fd, b""
        self._changed = threading.Condition()
        self._pump = threading.Thread(target=self._read)
        self._pump.start()

    def _read(self) -> None:
        with suppress(OSError):  # the other side has closed it
            while data := os.read(self._fd, 1 << 16):
                with self._changed:
                    self._seen += data
                    self._changed.notify()

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def wait_for(self, wanted: bytes) -> bytes:
        """What came before it. What comes later is looked at from behind it."""
        with self._changed:
            assert self._changed.wait_for(lambda: wanted in self._seen, TIMEOUT_S), f"no {wanted!r} in {self._seen!r}"
            before, _, self._seen = self._seen.partition(wanted)
            return before

    def wait_for_end(self) -> int:
        return self.popen.wait(TIMEOUT_S)

    @property
    def is_as_before(self) -> bool:
        """Whether what is typed is shown again, and comes line by line."""
        flags = termios.tcgetattr(self._fd)[3]
        return bool(flags & termios.ECHO and flags & termios.ICANON)

    def close(self) -> None:
        self.popen.kill()
        self._pump.join(TIMEOUT_S)
        os.close(self._fd)


@contextmanager
def in_terminal(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    with subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", **environment},
        start_new_session=True,
    ) as popen:
        os.close(slave)
        it = Terminal(popen, master)
        try:
            yield it
        finally:
            it.close()
