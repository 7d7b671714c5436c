"""Generation: the events of one request, as its engine sends them; Compression: what one keeps of a prompt; and what an
engine can fail with.

Puts the two channels of a request together: it is over when its last token's sentinel and its final reply have both
come. It must not know processes, nor what the tokens mean.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self

from luce.protocol import (
    Cancel,
    Command,
    CompressOk,
    ErrorCode,
    GenerateOk,
    InlineSnapshot,
    InlineSnapshotFailed,
    Logprobs,
    PrefillProgress,
    PromptLogprobs,
    RemoteProtocolError,
)


class EngineError(Exception):
    """The engine refused or ended one request; it serves the next one."""

    def __init__(self, code: ErrorCode | str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class DeathCause(StrEnum):
    CRASHED = "crashed"  # by its own fault: a signal such as SIGSEGV, or an exit code
    ENDED = "ended"  # otherwise, perhaps by somebody's kill
    HUNG = "hung"
    STOPPED = "stopped"  # by a signal from outside
    BROKE_PROTOCOL = "broke_protocol"
    CLOSED = "closed"  # by us
    WORKER_LOST = "worker_lost"  # another machine that it computes on is gone


EXIT_TRY_LATER = 75
"""luced's status where it lacks another machine, which may come back."""

_CRASHES = {
    signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP,
}  # fmt: skip


def cause_of_exit(code: int | None) -> DeathCause:
    """Negative for a signal; None: it has not ended."""
    if code == EXIT_TRY_LATER:
        return DeathCause.WORKER_LOST
    return DeathCause.CRASHED if code is not None and (code > 0 or -code in _CRASHES) else DeathCause.ENDED


OWN_FAULT = frozenset({DeathCause.CRASHED, DeathCause.HUNG})
FROM_OUTSIDE = frozenset({DeathCause.STOPPED, DeathCause.CLOSED, DeathCause.WORKER_LOST})
"""No request brought it about."""


class EngineDied(Exception):  # noqa: N818  what happened, in the words of ARCHITECTURE.md
    """The engine is gone, or broke the protocol: every request in in_flight has ended."""

    def __init__(self, text: str, cause: DeathCause = DeathCause.ENDED) -> None:
        super().__init__(text)
        self.cause = cause


class EngineEndedError(EngineDied):
    """It was told to end, and ended what it had begun: nobody is to blame."""


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """The `index`th token of the answer, from 0."""

    token: int
    index: int
    logprobs: tuple[tuple[int, float], ...] | None = None
    """From a Supervisor, where they were asked for: the chosen token first, then the likeliest. Lower layers have
    Logprobs events."""


GenerationReply = PrefillProgress | Logprobs | PromptLogprobs | InlineSnapshot | InlineSnapshotFailed | GenerateOk
Event = TokenEvent | GenerationReply


class Receiver(Protocol):
    """Whom a client hands the events of one request to, in the order in which each channel brings them."""

    @property
    def done(self) -> bool:
        """No further event is to come."""

    def take_tokens(self, tokens: Sequence[int]) -> None:
        """Those of one turn of the loop, at least one."""

    def take_end(self) -> None:
        """The sentinel. May raise RemoteProtocolError, and so may take_reply: it ends the engine."""

    def take_reply(self, reply: GenerationReply) -> None: ...

    def fail(self, failure: Exception) -> None:
        """EngineError or EngineDied: the last call."""


class Generation:
    """The events of one request: tokens, prefill progress and logprobs, and GenerateOk last.

    Iterating raises EngineError when the engine refuses the request and EngineDied when the engine is gone. Use as a
    context manager: leaving it before the last event cancels the request. One reader.
    """

    def __init__(self, request_id: int, send: Callable[[Command], Awaitable[None]]) -> None:
        self.id = request_id
        self._send = send
        self._events: deque[Event] = deque()
        self._wakeup: asyncio.Event = asyncio.Event()
        self._n_tokens = 0
        self._final: GenerateOk | None = None
        self._ended_tokens = False
        self._failure: Exception | None = None
        self._exhausted = False

    @property
    def done(self) -> bool:
        """No further event will come from the engine."""
        return self._failure is not None or (self._final is not None and self._ended_tokens)

    async def cancel(self) -> None:
        """Ask the engine to end this request; its last event still comes."""
        if not self.done:
            await self._send(Cancel(id=self.id))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """Waits as long as the engine lives: whether it still makes progress is for its watchdog to judge."""
        while True:
            if self._events:
                return self._events.popleft()
            if self._failure is not None:
                raise self._failure
            if self._exhausted:
                raise StopAsyncIteration
            if self._final is not None and self._ended_tokens:
                self._exhausted = True
                return self._final
            self._wakeup.clear()
            await self._wakeup.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._events.clear()
        with suppress(EngineDied):
            await self.cancel()

    # Receiver: called by the client only.

    def take_tokens(self, tokens: Sequence[int]) -> None:
        self._events += [TokenEvent(token, index) for index, token in enumerate(tokens, self._n_tokens)]
        self._n_tokens += len(tokens)
        self._wakeup.set()

    def take_end(self) -> None:
        self._ended_tokens = True
        self._wakeup.set()

    def take_reply(self, reply: GenerationReply) -> None:
        if isinstance(reply, GenerateOk):
            self._final = reply
        else:
            self._events.append(reply)
        self._wakeup.set()

    def fail(self, failure: Exception) -> None:
        if not self.done:
            self._failure = failure
            self._wakeup.set()


@dataclass(frozen=True, slots=True)
class Compressed:
    """What was kept of a prompt."""

    tokens: tuple[int, ...]
    parts: tuple[tuple[int, int], ...]
    """Where they stand in it: from the first up to before the second, in rising order."""
    n_in: int
    """Tokens of the prompt."""


class Compression:
    """What comes of one `compress`. `result` is done once both channels have said it, or with EngineError or
    EngineDied."""

    def __init__(self) -> None:
        self.result: asyncio.Future[Compressed] = asyncio.get_running_loop().create_future()
        self._tokens: list[int] = []
        self._final: CompressOk | GenerateOk | None = None
        self._ended_tokens = False
        self._failed = False

    @property
    def done(self) -> bool:
        return self._failed or (self._final is not None and self._ended_tokens)

    # Receiver: called by the client only.

    def take_tokens(self, tokens: Sequence[int]) -> None:
        self._tokens += tokens

    def take_end(self) -> None:
        self._ended_tokens = True
        self._finish()

    def take_reply(self, reply: GenerationReply) -> None:
        if isinstance(reply, GenerateOk):  # as it ends when it is cancelled, by us or by an engine that is told to end
            self._final = reply
            self._finish()

    def take_parts(self, reply: CompressOk) -> None:
        self._final = reply
        self._finish()

    def fail(self, failure: Exception) -> None:
        self._failed = True
        if not self.result.done():
            self.result.set_exception(failure)

    def _finish(self) -> None:
        final = self._final
        if not self._ended_tokens or final is None:
            return
        if isinstance(final, GenerateOk):
            self.fail(EngineEndedError("the engine was told to end"))
            return
        parts = tuple((part.begin, part.end) for part in final.parts)
        n_tokens = len(self._tokens)
        if not n_tokens == final.n_out == sum(end - begin for begin, end in parts):
            raise RemoteProtocolError(f"a compress of {final.n_out} tokens has {n_tokens}, and parts that do not fit")
        if not self.result.done():
            self.result.set_result(Compressed(tuple(self._tokens), parts, final.n_in))
