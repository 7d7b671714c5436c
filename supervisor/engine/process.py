"""EngineProcess: one `luced` child and its pipes, from spawn to reaped.

Owns the process and its five descriptors; hands on parsed replies and token records. It must not know what a request
is, when to restart, or whether the engine is healthy: that is policy and stands above.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from luce.protocol import (
    Err,
    LineDecoder,
    LoadProgress,
    ProtocolError,
    ReadyLine,
    RemoteProtocolError,
    Reply,
    parse_reply,
)
from luce.supervisor.config import DaemonConfig, engine_environment
from luce.supervisor.engine.pipes import PipeClosedError, PipeListener, PipeWriter, open_pipe_reader
from luce.supervisor.engine.token_records import TokenRecords

_READ_BYTES = 1 << 16
_LOG_TAIL_LINES = 200
_LOG_LINE_BYTES = 1 << 16
_DRAIN_LOG_S = 1.0
_WRITES_S = 30.0  # of the pages and checkpoints that are not on disk yet


class StartError(Exception):
    """The engine could not be started. `exit_code` is what it ended with, where it did."""

    def __init__(self, text: str, exit_code: int | None = None) -> None:
        super().__init__(text)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class StopDeadlines:
    """How long each rung of the stop ladder may take before the next one."""

    quit_s: float = 2.0
    terminate_s: float = 2.0
    kill_s: float = 5.0


class EngineProcess:
    """A running child. Use as a context manager: leaving it stops and reaps the child, also on an exception.

    States: spawned -> ready -> exited. `next_replies` has one reader, `listen_to_tokens` one listener.
    """

    def __init__(
        self, popen: subprocess.Popen[bytes], on_log: Callable[[str], None] | None, deadlines: StopDeadlines
    ) -> None:
        self._popen = popen
        self._deadlines = deadlines
        self._on_log = on_log
        self.load_percent: int | None = None
        """Of the weights, while they are read; None: it has not said."""
        self.n_load_reports = 0
        """How often it has said."""
        self._log_tail: deque[str] = deque(maxlen=_LOG_TAIL_LINES)
        self._exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._lines = LineDecoder()
        self._token_records = TokenRecords()
        self._early_replies: list[Reply] = []
        self._stdin: PipeWriter | None = None
        self._transports: list[asyncio.BaseTransport] = []
        self._stdout = asyncio.StreamReader()
        self._tokens: PipeListener | None = None
        self._log_pump: asyncio.Task[None] | None = None

    @classmethod
    async def spawn(
        cls,
        binary: Path,
        config: DaemonConfig,
        *,
        on_log: Callable[[str], None] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> EngineProcess:
        """Start `luced` in the multiplexed dialect; `on_log` gets each line of its log. `environment` is added to this
        process's own. One with a disk cache has longer to end: it writes what it owes the disk."""
        token_read, token_write = os.pipe()
        config = replace(config, mux=True, die_with_parent=True, stream_fd=token_write)
        try:
            popen = subprocess.Popen(  # noqa: ASYNC220  a fork and exec, no waiting
                [str(binary), *config.to_argv()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(token_write,),
                env=engine_environment({**os.environ, **(environment or {})}),
                process_group=0,  # Ctrl-C at the terminal is for us: the child is stopped by the ladder
            )
        except OSError as error:
            os.close(token_read)
            raise StartError(f"{binary} could not be started: {error.strerror}") from error
        finally:
            os.close(token_write)
        process = cls(popen, on_log, StopDeadlines() if config.disk_cache is None else StopDeadlines(quit_s=_WRITES_S))
        token_pipe = open(token_read, "rb", buffering=0)  # noqa: ASYNC230, PTH123, SIM115
        try:
            await process._connect(token_pipe)
        except BaseException:
            process._close_transports()
            for pipe in (token_pipe, popen.stdin, popen.stdout, popen.stderr):
                assert pipe is not None
                pipe.close()
            popen.kill()
            popen.wait()
            raise
        return process

    async def _connect(self, token_pipe: IO[bytes]) -> None:
        popen = self._popen
        assert popen.stdin is not None
        assert popen.stdout is not None
        assert popen.stderr is not None
        self._watch_exit()
        self._stdin = await PipeWriter.connect(popen.stdin)
        self._stdout, stdout_transport = await open_pipe_reader(popen.stdout)
        self._transports.append(stdout_transport)
        self._tokens = PipeListener(token_pipe)
        log_reader, log_transport = await open_pipe_reader(popen.stderr)
        self._transports.append(log_transport)
        self._log_pump = asyncio.create_task(self._pump_log(log_reader), name=f"log of luced {popen.pid}")

    def _watch_exit(self) -> None:
        # A pidfd becomes readable when the child ends: no thread, and no wait for pipes that a grandchild may hold.
        loop = asyncio.get_running_loop()
        pidfd = os.pidfd_open(self._popen.pid)

        def reap() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            self._exited.set_result(self._popen.wait())

        loop.add_reader(pidfd, reap)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._exited.result() if self._exited.done() else None

    def log_tail(self) -> list[str]:
        """The last lines of its log."""
        return list(self._log_tail)

    async def wait_ready(self, timeout_s: float) -> ReadyLine:
        """The daemon's handshake. Raises StartError with the daemon's own reason."""
        try:
            async with asyncio.timeout(timeout_s):
                replies = await self.next_replies()
        except TimeoutError:
            raise StartError(
                f"luced did not get ready within {timeout_s:g} s: give it longer, or look at its log"
            ) from None
        except ProtocolError as error:
            raise StartError(f"the program that was started does not speak luced's protocol: {error}") from error
        match replies:
            case [ReadyLine() as ready, *rest]:
                self._early_replies = rest
                return ready
            case [Err() as err, *_]:
                raise StartError(err.text, await self._exit_code_within(_DRAIN_LOG_S))
        code = await self._exit_code_within(_DRAIN_LOG_S)
        tail = "\n".join(self.log_tail()[-5:])
        raise StartError(f"luced ended before it was ready ({describe_exit(code)})\n{tail}".rstrip(), code)

    async def next_replies(self) -> list[Reply]:
        """The next replies, at least one; [] once stdout has ended. Raises RemoteProtocolError."""
        if self._early_replies:
            early, self._early_replies = self._early_replies, []
            return early
        while True:
            data = await self._stdout.read(_READ_BYTES)
            if data == b"":
                return []
            self._lines.feed(data)
            replies: list[Reply] = []
            while (line := self._lines.next_line()) is not None:
                if line.too_long:
                    raise RemoteProtocolError("a reply line without an end")
                reply = parse_reply(line.text)
                if isinstance(reply, LoadProgress):
                    self.load_percent = reply.percent
                    self.n_load_reports += 1
                else:
                    replies.append(reply)
            if replies:
                return replies

    def listen_to_tokens(self, take: Callable[[Iterator[tuple[int, int]] | None], None]) -> None:
        """`take` gets the token records as they come, (request id, value) each, perhaps none; None once, when the fd
        has ended. It is called until the process is stopped. REQUIRES: a process that is ready and not stopped yet."""
        assert self._tokens is not None
        records = self._token_records
        self._tokens.listen(lambda data: take(records.feed(data) if data else None))

    async def write(self, line: bytes, timeout_s: float = 10.0) -> None:
        """Send one command line. Raises PipeClosedError when the child has closed its stdin, TimeoutError when it
        does not read."""
        if self._stdin is None:
            raise PipeClosedError
        await self._stdin.write(line, timeout_s)

    def post(self, line: bytes) -> None:
        """Send one command line without waiting until the child reads. Raises PipeClosedError."""
        if self._stdin is None:
            raise PipeClosedError
        self._stdin.post(line)

    async def wait(self, timeout_s: float) -> int:
        """The exit code. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            return await asyncio.shield(self._exited)

    async def stop(self, deadlines: StopDeadlines | None = None) -> int | None:
        """quit, then SIGTERM, then SIGKILL, each with its deadline; then the pipes are closed. Safe to call twice."""
        limits = self._deadlines if deadlines is None else deadlines
        try:
            if not await self._ask_to_quit(limits.quit_s):
                self._signal(signal.SIGTERM)
                if await self._exit_code_within(limits.terminate_s) is None:
                    self._signal(signal.SIGKILL)
                    await self._exit_code_within(limits.kill_s)
        finally:
            self._signal(signal.SIGKILL)  # reached with a living child only when the ladder itself was cancelled
            await self._close()
        return self.exit_code

    async def kill(self) -> None:
        """End it now."""
        await self.stop(StopDeadlines(quit_s=0, terminate_s=0))

    async def _ask_to_quit(self, timeout_s: float) -> bool:
        if self._exited.done():
            return True
        if timeout_s <= 0 or self._stdin is None:
            return False
        with suppress(PipeClosedError, TimeoutError):
            await self._stdin.write(b"quit\n", timeout_s)
        self._stdin.close()
        return await self._exit_code_within(timeout_s) is not None

    async def _exit_code_within(self, timeout_s: float) -> int | None:
        with suppress(TimeoutError):
            return await self.wait(timeout_s)
        return None

    def _signal(self, number: int) -> None:
        if not self._exited.done():
            self._popen.send_signal(number)

    async def _close(self) -> None:
        if self._log_pump is not None:
            # The last words are worth a moment; a grandchild that holds the pipe is not waited for.
            await asyncio.wait([self._log_pump], timeout=_DRAIN_LOG_S)
            self._log_pump.cancel()
        self._close_transports()
        await self._exit_code_within(_DRAIN_LOG_S)

    def _close_transports(self) -> None:
        if self._stdin is not None:
            self._stdin.abort()
        for transport in self._transports:
            transport.close()
        if self._tokens is not None:
            self._tokens.close()

    async def _pump_log(self, reader: asyncio.StreamReader) -> None:
        partial = b""
        while True:
            data = await reader.read(_READ_BYTES)
            *lines, partial = (partial + data).split(b"\n")
            if partial != b"" and (data == b"" or len(partial) > _LOG_LINE_BYTES):
                lines.append(partial)
                partial = b""
            for line in lines:
                text = line.decode("utf-8", errors="replace")
                self._log_tail.append(text)
                if self._on_log is not None:
                    self._on_log(text)
            if data == b"":
                return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def describe_exit(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "still running"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
