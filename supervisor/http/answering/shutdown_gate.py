"""ShutdownGate: stands in front of whatever answers, and can be shut: for a server that is to stop.

It counts the answers that are open, refuses further ones once it is closed, and can end those that run with an error
that a client understands. It must not know what is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

from luce.supervisor.http.answering.answer_events import AnswerEvent
from luce.supervisor.http.app_context import Answerer, Answering, FastPath
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.prompts.answer_request import AnswerRequest

STREAM_ERRORS: ContextVar[list[ApiError] | None] = ContextVar("STREAM_ERRORS", default=None)
"""Where an answer that fails after it has begun leaves its error, for the account of the request."""


class ShutdownGate:
    def __init__(self) -> None:
        self.n_open = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._waiting: set[asyncio.Task[object]] = set()
        self.is_closed = False
        self.is_closing = False
        """It will be closed soon: whoever can ask elsewhere is to do so."""
        self._interrupted = asyncio.Event()

    def before(self, answerer: Answerer) -> GatedAnswerer:
        """The same, behind this gate."""
        return GatedAnswerer(self, answerer)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """For work that is no answer: counted and refused like one, and ended with the others."""
        task = asyncio.current_task()
        assert task is not None
        n_cancelled = task.cancelling()
        with self.counted():
            self._waiting.add(task)
            try:
                yield
            except asyncio.CancelledError:
                if self._interrupted.is_set() and task.uncancel() <= n_cancelled:
                    raise _shutting_down() from None
                raise
            finally:
                self._waiting.discard(task)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Raises ApiError once it is closed."""
        if self.is_closed:
            raise _shutting_down()
        self.n_open += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.n_open -= 1
            if self.n_open == 0:
                self._idle.set()

    def close(self) -> None:
        """No further answer begins."""
        self.is_closed = True

    def interrupt(self) -> None:
        """Those that run end with an error."""
        self.is_closed = True
        self._interrupted.set()
        for task in tuple(self._waiting):
            task.cancel()

    @property
    def is_idle(self) -> bool:
        return self._idle.is_set()

    async def wait_idle(self) -> None:
        await self._idle.wait()

    async def events(self, events: AsyncIterator[AnswerEvent]) -> AsyncIterator[AnswerEvent]:
        """The same, until it is interrupted. REQUIRES: the task that begins to read reads to the end."""
        task = asyncio.current_task()
        assert task is not None
        n_cancelled = task.cancelling()
        try:
            while not self._interrupted.is_set():
                self._waiting.add(task)
                try:
                    event = await anext(events)
                except StopAsyncIteration:
                    return
                except asyncio.CancelledError:
                    if self._interrupted.is_set() and task.uncancel() <= n_cancelled:
                        break
                    raise
                finally:
                    self._waiting.discard(task)
                yield event
            raise _shutting_down()
        except ApiError as error:
            errors = STREAM_ERRORS.get()
            if errors is not None:
                errors.append(error)
            raise


class GatedAnswerer:
    """Implements app_context.Answerer."""

    def __init__(self, gate: ShutdownGate, answerer: Answerer) -> None:
        self._gate = gate
        self._answerer = answerer

    @asynccontextmanager
    async def open(self, answer_request: AnswerRequest) -> AsyncIterator[Answering]:
        with self._gate.counted():
            async with self._answerer.open(answer_request) as answering:
                yield _Gated(self._gate, answering)

    async def count_tokens(self, answer_request: AnswerRequest) -> int:
        return await self._answerer.count_tokens(answer_request)

    async def prompt_text(self, answer_request: AnswerRequest) -> str:
        return await self._answerer.prompt_text(answer_request)


class _Gated:
    def __init__(self, gate: ShutdownGate, answering: Answering) -> None:
        self._gate = gate
        self._answering = answering

    @property
    def n_prompt(self) -> int:
        return self._answering.n_prompt

    @property
    def n_generated(self) -> int:
        return self._answering.n_generated

    def events(self, fast_path: FastPath | None = None) -> AsyncIterator[AnswerEvent]:
        return self._gate.events(self._answering.events(fast_path))


def _shutting_down() -> ApiError:
    text = "the server is shutting down: try again in a moment"
    return ApiError(ErrorKind.UNAVAILABLE, "shutting_down", text, retry_after_s=10.0)
