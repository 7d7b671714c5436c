"""DaemonDriver: drives one `luced` over bare pipes, in either dialect, with a deadline on every read.

For the tests of the daemon itself and for the benchmarks: it blocks in poll() and leaves tokens in the pipe until
somebody wants them, so that on a machine with few cores it costs the engine next to nothing. It must not know what is
being tested.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import signal
import struct
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from luce.protocol import (
    Dialect,
    End,
    Err,
    GenerateOk,
    LineDecoder,
    LoadProgress,
    Logprobs,
    PrefillProgress,
    PromptLogprobs,
    ReadyLine,
    Reply,
    TokenDecoder,
    TokenEvent,
    parse_reply,
)
from luce.supervisor.config.options import engine_environment

DEADLINE_S = 120.0


class DaemonEnded(Exception):  # noqa: N818  it is no error where a test waits for it
    """The channel that was read has ended; `status` is the exit status, if the daemon is gone."""

    def __init__(self, channel: str, status: int | None) -> None:
        super().__init__(f"luced's {channel} has ended (exit status {status})")
        self.status = status


@dataclass
class Answer:
    """What one generating command gave: its tokens (without the sentinel) and its final reply."""

    tokens: list[int] = field(default_factory=list)
    reply: GenerateOk | Err | None = None
    logprobs: list[Logprobs] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)


class DaemonDriver:
    """Use as a context manager: leaving it ends the daemon and reaps it."""

    def __init__(
        self, binary: Path, model: Path, *arguments: str, mux: bool = True, stream: bool = True, log_level: str = "warn"
    ) -> None:
        self.mux = mux
        command = [str(binary), "--model", str(model), "--log-level", log_level, *arguments]
        token_reader, token_writer = os.pipe() if stream else (-1, -1)
        if mux:
            command.append("--mux")
        if stream:
            command += ["--stream-fd", str(token_writer)]
        self.child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=engine_environment(os.environ),
            pass_fds=(token_writer,) if stream else (),
        )
        if stream:
            os.close(token_writer)
        self._token_fd = token_reader
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self._stdin = self.child.stdin
        self._stdout_fd = self.child.stdout.fileno()
        self._lines = LineDecoder()
        self._tokens = TokenDecoder(Dialect.MULTIPLEXED if mux else Dialect.PLAIN)

    def __enter__(self) -> Self:
        self.ready = self.expect_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> int:
        """End of input, then the exit status; a daemon that does not end in time is killed."""
        self.close_input()
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.child.send_signal(signal.SIGKILL)
            return self.child.wait()
        finally:
            self.close_tokens()
            self.close_replies()

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        return self.child.wait(timeout=timeout_s)

    def close_input(self) -> None:
        with suppress(BrokenPipeError):
            self._stdin.close()

    def close_tokens(self) -> None:
        """What a reader that goes away does."""
        if self._token_fd >= 0:
            os.close(self._token_fd)
            self._token_fd = -1

    def shrink_token_pipe(self) -> None:
        """To a page: it is full after some hundred tokens."""
        fcntl.fcntl(self._token_fd, fcntl.F_SETPIPE_SZ, 4096)

    def close_replies(self) -> None:
        assert self.child.stdout is not None
        self.child.stdout.close()

    def send(self, *lines: str) -> None:
        self.send_bytes("".join(f"{line}\n" for line in lines).encode())

    def send_bytes(self, data: bytes) -> None:
        self._stdin.write(data)
        self._stdin.flush()

    def next_line(self, deadline_s: float = DEADLINE_S) -> bytes:
        until_s = time.monotonic() + deadline_s
        while (line := self._lines.next_line()) is None:
            data = self._read(self._stdout_fd, until_s, "a reply")
            if data == b"":
                raise DaemonEnded("stdout", self.child.poll())
            self._lines.feed(data)
        return line.text

    def next_reply(self, deadline_s: float = DEADLINE_S) -> Reply:
        """The next reply that is no progress line."""
        while True:
            reply = parse_reply(self.next_line(deadline_s))
            if isinstance(reply, LoadProgress):
                continue  # a load that takes long says so
            if not isinstance(reply, PrefillProgress):
                return reply

    def next_ok(self) -> GenerateOk:
        reply = self.next_reply()
        assert isinstance(reply, GenerateOk), reply
        return reply

    def next_token(self, deadline_s: float = DEADLINE_S) -> TokenEvent:
        until_s = time.monotonic() + deadline_s
        while (event := self._tokens.next_event()) is None:
            data = self._read(self._token_fd, until_s, "a token")
            if data == b"":
                raise DaemonEnded("token fd", self.child.poll())
            self._tokens.feed(data)
        return event

    def tokens_until_end(self, deadline_s: float = DEADLINE_S) -> list[int]:
        """The tokens up to the next sentinel; REQUIRES that one request runs."""
        tokens = []
        while not isinstance(event := self.next_token(deadline_s), End):
            tokens.append(event.value)
        return tokens

    def collect(self, n_requests: int, deadline_s: float = DEADLINE_S) -> dict[int, Answer]:
        """All that the next n_requests generating commands give, by request id; for the multiplexed dialect."""
        answers: dict[int, Answer] = {}
        n_open = n_requests
        while n_open:
            event = self.next_token(deadline_s)
            answer = answers.setdefault(event.id, Answer())
            if isinstance(event, End):
                n_open -= 1
            else:
                answer.tokens.append(event.value)
        n_open = n_requests
        while n_open:
            reply = self.next_reply()
            if isinstance(reply, Logprobs):
                answers[reply.id or 0].logprobs.append(reply)
            elif isinstance(reply, PromptLogprobs):
                answers[reply.id or 0].prompt_logprobs.append(reply)
            elif isinstance(reply, GenerateOk | Err):
                answers[reply.id or 0].reply = reply
                n_open -= 1
        return answers

    def generate(self, prompt: Sequence[int], n: int, extra: str = "", request_id: int = 1) -> Answer:
        """One request by itself, through the named form."""
        self.send(gen_line(request_id, n, prompt, extra))
        answer = Answer(self.tokens_until_end())
        while answer.reply is None:
            reply = self.next_reply()
            if isinstance(reply, Logprobs):
                answer.logprobs.append(reply)
            elif isinstance(reply, PromptLogprobs):
                answer.prompt_logprobs.append(reply)
            else:
                assert isinstance(reply, GenerateOk | Err), reply
                answer.reply = reply
        return answer

    def drop_buffered_tokens(self) -> None:
        """Forget what was read from the pipe and not yet looked at."""
        while self._tokens.next_event() is not None:
            pass

    def resident_kb(self) -> int:
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1])

    def expect_ready(self) -> ReadyLine:
        reply = self.next_reply()
        assert isinstance(reply, ReadyLine), reply
        return reply

    def _read(self, fd: int, until_s: float, what: str) -> bytes:
        ready, _, _ = select.select([fd], [], [], max(0.0, until_s - time.monotonic()))
        if not ready:
            raise TimeoutError(f"luced (exit status {self.child.poll()}) has not sent {what} in time")
        return os.read(fd, 1 << 16)


def gen_line(request_id: int, n: int, prompt: Sequence[int] | Path, extra: str = "") -> str:
    source = f"@{prompt}" if isinstance(prompt, Path) else ",".join(map(str, prompt))
    return f"gen id={request_id} n={n} prompt={source} {extra}".rstrip()


def to_bytes(tokens: Sequence[int]) -> bytes:
    """A raw prompt file's bytes."""
    return struct.pack(f"<{len(tokens)}i", *tokens)


def random_prompt(n: int, seed: int = 1) -> list[int]:
    """n token ids that every test model has, the same ones each time."""
    rng = random.Random(seed)
    return [rng.randrange(10, 250) for _ in range(n)]
