"""VectorQueue: requests for vectors and the engine that computes them: which text is next, and what happens when the
engine is lost.

Listens to one monitor. Requests take turns text by text, so that a single query does not wait for a whole library. It
knows token ids, no text and no HTTP.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from luce.protocol import Cancel, Embed, Embedding, ErrorCode, LocalProtocolError
from luce.supervisor.config import SupervisorConfig
from luce.supervisor.engine.client import EngineClient
from luce.supervisor.engine.generation import EngineDied, EngineError
from luce.supervisor.engine.info import EngineInfo
from luce.supervisor.engine.monitor import EngineMonitor
from luce.supervisor.requests import (
    DeadlineError,
    EngineFailedError,
    EngineKillerError,
    PromptTooLongError,
    QueueFullError,
    RequestError,
    RequestRefusedError,
    SupervisorClosedError,
)

MAX_IN_ENGINE = 128  # texts that the engine has at once: two calls of its model, so that it never waits for us
_MAX_DEATHS = 2  # of engines, under one request
_BUSY_RETRY_S = 1.0


@dataclass(slots=True)
class VectorTotals:
    n_texts: int = 0
    n_tokens: int = 0
    n_retries: int = 0  # requests that were begun again because their engine died


@dataclass(eq=False, slots=True)
class _Request:
    texts: Sequence[Sequence[int]]
    done: asyncio.Future[None]
    unsent: deque[int]  # numbers of texts
    vectors: dict[int, Embedding] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)  # the engine's id of each text -> its number
    n_deaths: int = 0
    timer: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        return not self.sent and not self.vectors


class VectorQueue:
    def __init__(self, config: SupervisorConfig) -> None:
        self._config = config
        self._monitor: EngineMonitor | None = None
        self._client: EngineClient | None = None
        self._requests: deque[_Request] = deque()  # those with texts that are not sent yet; the next one first
        self._running: set[_Request] = set()  # those with texts in the engine
        self._given_up: EngineMonitor | None = None
        self._is_closed = False
        self.info: EngineInfo | None = None
        self.totals = VectorTotals()

    @property
    def n_waiting(self) -> int:
        """Requests of which nothing is computed yet."""
        return sum(request.is_waiting for request in self._requests)

    async def embed(self, texts: Sequence[Sequence[int]]) -> list[Embedding]:
        """The vector of each text, in their order. Raises RequestError."""
        self._check(texts)
        request = _Request(texts, asyncio.get_running_loop().create_future(), deque(range(len(texts))))
        self._requests.append(request)
        timeout_s = self._config.queue_timeout_s
        if timeout_s is not None:
            request.timer = asyncio.get_running_loop().call_later(timeout_s, self._expire, request, timeout_s)
        self._pump()
        try:
            await request.done
        finally:
            self._forget(request)
        return [request.vectors[number] for number in range(len(texts))]

    def close(self) -> None:
        """Nothing more is computed."""
        self._is_closed = True
        self._fail_all(SupervisorClosedError("the supervisor is being left"))

    def _check(self, texts: Sequence[Sequence[int]]) -> None:
        if self._is_closed:
            raise SupervisorClosedError("the supervisor has been left")
        if self._given_up is not None:
            if not self._given_up.try_again():
                raise EngineFailedError("the engine of this model has failed too often: ask again later")
            self._given_up = None
        n_waiting = self.n_waiting
        if n_waiting >= max(self._config.max_queue, 1):
            raise QueueFullError(n_waiting, _BUSY_RETRY_S)
        n_ctx = None if self.info is None else self.info.ctx
        for number, text in enumerate(texts):
            if not text:
                raise RequestRefusedError(ErrorCode.EMPTY_PROMPT, "a text needs at least one token")
            if n_ctx is not None and len(text) > n_ctx:
                why = f"a text of {len(text):,} tokens is too large: the model reads {n_ctx:,}"
                raise PromptTooLongError(len(text), n_ctx, why, number=number)

    # The monitor's side

    def engine_ready(self, monitor: EngineMonitor, client: EngineClient, info: EngineInfo) -> None:
        self._monitor, self._client, self.info = monitor, client, info
        self._pump()

    def engine_died(self, monitor: EngineMonitor, death: EngineDied) -> None:
        del monitor
        self._client = None
        for request in tuple(self._running):
            self._running.discard(request)
            request.n_deaths += 1
            if request.n_deaths >= _MAX_DEATHS:
                self._fail(request, EngineKillerError(f"{_MAX_DEATHS} engines have died of this request: {death}"))
                continue
            self.totals.n_retries += 1
            request.unsent.extendleft(sorted(request.sent.values(), reverse=True))
            request.sent.clear()
            if request not in self._requests:
                self._requests.appendleft(request)

    def engine_failed(self, monitor: EngineMonitor) -> None:
        self._given_up = monitor
        self._fail_all(EngineFailedError(f"there is no engine for this model any more: {monitor.last_failure}"))

    def engine_has_requests(self, monitor: EngineMonitor) -> bool:
        del monitor
        return bool(self._running)

    def engine_is_late(self, monitor: EngineMonitor, now_s: float) -> str | None:
        del monitor, now_s
        return None

    # Texts on their way

    def _pump(self) -> None:
        """Sends what the engine has room for. A request under which an engine has died runs alone: if it was its fault,
        no other one pays for that again."""
        n_sent = sum(len(request.sent) for request in self._running)
        while self._client is not None and self._requests and n_sent < MAX_IN_ENGINE:
            request = self._requests[0]
            if request.done.done():
                self._requests.popleft()
                continue
            others = self._running - {request}
            if others and (request.n_deaths > 0 or any(other.n_deaths > 0 for other in others)):
                return
            self._requests.popleft()
            self._send(self._client, request)
            n_sent += 1
            if request.unsent and not request.done.done() and request not in self._requests:
                (self._requests.appendleft if request.n_deaths > 0 else self._requests.append)(request)

    def _send(self, client: EngineClient, request: _Request) -> None:
        number = request.unsent.popleft()
        self._running.add(request)
        self._stop_timer(request)
        try:
            text_id, answered = client.post_embed(Embed(prompt=tuple(request.texts[number])))
        except EngineDied:
            request.unsent.appendleft(number)  # the monitor tells of its death, or has
            if not request.sent:
                self._running.discard(request)
            return
        except (LocalProtocolError, OSError) as error:
            self._fail(request, RequestRefusedError(ErrorCode.BAD_ARGS, str(error)))
            return
        request.sent[text_id] = number
        answered.add_done_callback(lambda future: self._take(request, text_id, future))
        if self._monitor is not None:
            self._monitor.wake()

    def _take(self, request: _Request, text_id: int, answered: asyncio.Future[Embedding]) -> None:
        number = request.sent.pop(text_id, None)
        if not request.sent:
            self._running.discard(request)
        failure = None if answered.cancelled() else answered.exception()
        if number is None or answered.cancelled() or isinstance(failure, EngineDied) or request.done.done():
            self._pump()
            return
        if isinstance(failure, EngineError) and failure.code == ErrorCode.PROMPT_TOO_LONG:
            n_prompt = len(request.texts[number])
            self._fail(request, PromptTooLongError(n_prompt, None, failure.text, number=number))
        elif isinstance(failure, EngineError):
            self._fail(request, RequestRefusedError(failure.code, failure.text))
        elif failure is not None:
            self._fail(request, RequestRefusedError(ErrorCode.INTERNAL, str(failure)))
        else:
            vector = answered.result()
            request.vectors[number] = vector
            self.totals.n_texts += 1
            self.totals.n_tokens += vector.n_tokens
            if len(request.vectors) == len(request.texts):
                request.done.set_result(None)
        self._pump()

    def _forget(self, request: _Request) -> None:
        """Nobody waits for it any more: what the engine has of it is cancelled."""
        self._stop_timer(request)
        with suppress(ValueError):
            self._requests.remove(request)
        self._running.discard(request)
        if self._client is not None:
            for text_id in request.sent:
                with suppress(EngineDied):
                    self._client.post(Cancel(id=text_id))
        request.sent.clear()
        self._pump()

    def _expire(self, request: _Request, timeout_s: float) -> None:
        self._fail(request, DeadlineError(f"the request has waited for its turn for {timeout_s:g} s"))

    def _fail_all(self, error: RequestError) -> None:
        for request in {*self._requests, *self._running}:
            self._fail(request, error)

    def _fail(self, request: _Request, error: RequestError) -> None:
        if not request.done.done():
            request.done.set_exception(error)

    def _stop_timer(self, request: _Request) -> None:
        if request.timer is not None:
            request.timer.cancel()
            request.timer = None
