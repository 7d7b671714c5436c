"""Our standard output as the left side of a pipeline: write_output for a command without an engine, OutputPipe beside
one, which never blocks the loop and notices at once, also between two writes, that the reader has gone.

Past Python's buffers, so that what could not be written is not tried again at exit. Knows nothing of what it writes.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import stat
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from luce.supervisor.cli.entry import EXIT_REFUSED, Failure, OutputClosedError, say

if TYPE_CHECKING:
    from rich.console import Console

# A pipe that polls as writable takes this much without blocking (POSIX: PIPE_BUF is at most one page).
_CHUNK_BYTES = select.PIPE_BUF


STDOUT_FD = 1
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def write_output(data: bytes) -> None:
    """Write all of it to stdout; waits as long as the reader takes. Raises OutputClosedError or Failure."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(STDOUT_FD, view) :]
        except BlockingIOError:  # somebody else has set this pipe or terminal to non-blocking
            _poll_writable(STDOUT_FD, timeout_ms=None)
        except OSError as error:
            raise _output_error(error) from None


def safe(text: str) -> str:
    """What others wrote is no command to the terminal: control characters are shown as their pictures."""
    return _CONTROLS.sub(lambda found: chr(0x2400 + ord(found[0])) if ord(found[0]) < 0x20 else "\ufffd", text)


def print_tables(print_to: Callable[[Console], None]) -> None:
    """What rich makes for this output, terminal or not, by write_output."""
    from rich.console import Console

    console = Console()
    with console.capture() as captured:
        print_to(console)
    write_output(captured.get().encode(console.encoding, errors="replace"))


def say_tables(print_to: Callable[[Console], None]) -> None:
    """The same for people, on stderr, where stdout has something else."""
    from rich.console import Console

    console = Console(stderr=True)
    with console.capture() as captured:
        print_to(console)
    say(captured.get(), nl=False)


def _output_error(error: OSError) -> Exception:
    if isinstance(error, BrokenPipeError):
        return OutputClosedError()
    return Failure(f"standard output cannot be written: {error.strerror}", EXIT_REFUSED)


def _poll_writable(fd: int, timeout_ms: int | None) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    return poller.poll(timeout_ms) != []


class OutputPipe:
    """Use as a context manager: what runs inside is cancelled when the reader goes, and OutputClosedError raised."""

    def __init__(self, fd: int = STDOUT_FD) -> None:
        self._fd = fd
        mode = os.fstat(fd).st_mode
        self._is_pipe = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
        self._closed = False
        self._task: asyncio.Task[object] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        if stat.S_ISFIFO(os.fstat(self._fd).st_mode):
            # The write end of a pipe never becomes readable, so all that is ever reported is that its reader went.
            asyncio.get_running_loop().add_reader(self._fd, self._on_closed)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        if self._closed and kind is asyncio.CancelledError and self._task is not None:
            self._task.uncancel()
            raise OutputClosedError from None

    def release(self) -> None:
        """All is written: whether the reader stays no longer matters."""
        if self._is_pipe:
            asyncio.get_running_loop().remove_reader(self._fd)

    def _on_closed(self) -> None:
        self.release()
        self._closed = True
        if self._task is not None:
            self._task.cancel()

    async def write(self, data: bytes) -> None:
        """Write all of it; waits as long as the reader takes. Raises OutputClosedError or Failure."""
        view = memoryview(data)
        try:
            while view:
                if self._is_pipe:
                    await self._wait_writable()
                view = view[os.write(self._fd, view[:_CHUNK_BYTES]) :]
        except OSError as error:
            raise _output_error(error) from None

    async def _wait_writable(self) -> None:
        # A short poll first: a reader that keeps up costs no trip through the loop.
        if _poll_writable(self._fd, timeout_ms=0):
            return
        loop = asyncio.get_running_loop()
        writable = loop.create_future()
        loop.add_writer(self._fd, lambda: None if writable.done() else writable.set_result(None))
        try:
            await writable
        finally:
            loop.remove_writer(self._fd)
