"""Dispatcher: requests <-> replicas. Each goes to the replica that the router names, and on with another one, from the
tokens that its client has, when that is lost.

A request is held as the supervisor holds it (InFlightRequest): prompt, seed, and every token that its caller has or
will get. What the next replica is asked for is the rest, as the next engine would be. It must not know text, nor how a
router chooses.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from luce.protocol import ErrorCode
from luce.ray.link import Message
from luce.ray.replica_book import Question, ReplicaBook
from luce.ray.replica_door import failure_of
from luce.ray.replica_links import ReplicaLink, ReplicaLinks
from luce.supervisor.config import SupervisorConfig
from luce.supervisor.engine.generation import TokenEvent
from luce.supervisor.prefix_cache.page_names import PAGE_TOKENS, page_names
from luce.supervisor.prefix_cache.prefix_index import pack, unpack
from luce.supervisor.requests import (
    Begun,
    DeadlineError,
    EngineFailedError,
    FinishedEvent,
    GenerateRequest,
    PrefillEvent,
    PromptTokenEvent,
    QueueFullError,
    RequestError,
    RequestRefusedError,
    SupervisorClosedError,
)
from luce.supervisor.scheduling.in_flight_request import InFlightRequest, Item

MOST_LOSSES = 8
"""Replicas that may be lost under a request one after the other without a new token."""
_LOG = logging.getLogger("luce.ray.ingress")

Choose = Callable[[Question[Any]], Awaitable[tuple[str, Mapping[str, Any]]]]
"""The replica that the router names: its id, and what it has told of itself."""


class _Elsewhere(Exception):  # noqa: N818  no error: where it goes on
    """The request is to go on with another replica."""

    def __init__(self, *, lost: bool, error: RequestError | None = None) -> None:
        super().__init__()
        self.lost = lost
        self.error = error


class Carried:
    """A request, and the replica that it is with."""

    def __init__(self, in_flight: InFlightRequest) -> None:
        self.in_flight = in_flight
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.left: asyncio.Future[None] = self.accepted  # once the replica has no more to do with it
        self.with_replica: ReplicaLink | None = None
        self.full: set[str] = set()  # replicas that cannot take it
        self.n_losses = 0  # since the last new token
        self.n_tokens_then = 0
        self.task: asyncio.Task[None] | None = None


class Dispatcher:
    """Implements service.Requests and LinkListener. One for each ingress."""

    def __init__(self, config: SupervisorConfig, book: ReplicaBook, choose: Choose, *, name: str, stride: int) -> None:
        self._config = config
        self._book = book
        self._choose = choose
        self._stride_pages = stride // PAGE_TOKENS
        self._serials = itertools.count(1)
        self._carried: dict[int, Carried] = {}
        self._asked: dict[int, tuple[ReplicaLink, asyncio.Future[Any]]] = {}
        self._closed = False
        self.links = ReplicaLinks(name, self)
        self.n_failovers = 0
        self.on_failover: Callable[[], None] = lambda: None

    # Callers

    async def submit(self, request: GenerateRequest, prompt: Sequence[int]) -> InFlightRequest:
        """Returns once a replica has taken it. Raises RequestError."""
        if self._closed:
            raise SupervisorClosedError("the ingress is being left")
        if len(prompt) == 0:
            raise RequestRefusedError(ErrorCode.EMPTY_PROMPT, "a prompt needs at least one token")
        in_flight = InFlightRequest(next(self._serials), request, prompt, self._seed_of(request))
        carried = self._carried[in_flight.serial] = Carried(in_flight)
        carried.task = asyncio.create_task(self._carry(carried))
        try:
            await asyncio.shield(carried.accepted)
        except asyncio.CancelledError:
            self.cancel(in_flight)
            raise
        return in_flight

    def end(self, in_flight: InFlightRequest) -> None:
        carried = self._carried.get(in_flight.serial)
        if carried is None or in_flight.is_enough:
            return
        in_flight.is_enough = True
        if carried.with_replica is not None:
            carried.with_replica.link.send("end", in_flight.serial)
        else:
            self._finish(carried, in_flight.finished_event(None))

    def cancel(self, in_flight: InFlightRequest) -> None:
        if (carried := self._carried.get(in_flight.serial)) is not None:
            self._fail(carried, SupervisorClosedError("the request was cancelled"))

    async def ask(self, replica: ReplicaLink, what: str, **arguments: object) -> Any:
        """Something beside requests. Raises RequestError; EngineFailedError when the replica is lost."""
        if not replica.link.is_open:
            raise EngineFailedError("the replica was lost")
        number = next(self._serials)
        asked = asyncio.get_running_loop().create_future()
        self._asked[number] = replica, asked
        replica.link.send("ask", number, what, arguments)
        try:
            return await asked
        finally:
            self._asked.pop(number, None)

    @property
    def n_open(self) -> int:
        return len(self._carried)

    def close(self) -> None:
        self._closed = True
        for carried in tuple(self._carried.values()):
            self._fail(carried, SupervisorClosedError("the ingress was left while the request ran"))
        self.links.close()

    def _seed_of(self, request: GenerateRequest) -> int:
        if request.seed is not None:
            return request.seed
        return secrets.randbits(63) if self._config.seed is None else self._config.seed

    def _each_stride(self, names: Sequence[bytes]) -> Sequence[bytes]:
        return names[self._stride_pages - 1 :: self._stride_pages]

    # One request

    async def _carry(self, carried: Carried) -> None:
        in_flight = carried.in_flight
        try:
            async with asyncio.timeout(in_flight.request.timeout_s):
                await self._carry_on(carried)
        except TimeoutError:
            text = f"the request was to take {in_flight.request.timeout_s:g} s at most"
            self._fail(carried, DeadlineError(text))
        except RequestError as error:
            self._fail(carried, error)
        except Exception as error:  # noqa: BLE001  what nobody foresaw is this request's end, not a client's long wait
            _LOG.exception("a request could not be sent to a replica")
            self._fail(carried, RequestRefusedError(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}"))

    async def _carry_on(self, carried: Carried) -> None:
        while not carried.in_flight.finished:
            replica = await self._replica_for(carried)
            try:
                await self._run_at(replica, carried)
            except _Elsewhere as elsewhere:
                if elsewhere.error is not None:
                    self._note_refusal(carried, replica, elsewhere.error)
                elif elsewhere.lost:
                    self._note_loss(carried)

    async def _replica_for(self, carried: Carried) -> ReplicaLink:
        """Raises DeadlineError where there is none in time."""
        request = carried.in_flight.request
        limit_s = self._config.queue_timeout_s if request.queue_timeout_s is None else request.queue_timeout_s
        waits_since_s = time.monotonic()
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    unwanted = self.links.unwanted | carried.full
                    question: Question[Any] = Question(
                        self._book,
                        lambda identity: self._each_stride(carried.in_flight.page_names(identity)),
                        carried.in_flight.n_prompt,
                        request.session,
                        unwanted,
                    )
                    key, metadata = await self._choose(question)
                    try:
                        return await self.links.get(key, metadata)
                    except OSError:
                        self._book.forget(key)
        except TimeoutError:
            waited_s = time.monotonic() - waits_since_s
            raise DeadlineError(f"the request has waited {waited_s:.1f} s for a replica") from None

    async def _run_at(self, replica: ReplicaLink, carried: Carried) -> None:
        """Until the replica has ended it. Raises _Elsewhere, RequestError."""
        in_flight = carried.in_flight
        if not replica.link.is_open:  # lost since it was chosen
            raise _Elsewhere(lost=True)
        carried.left = asyncio.get_running_loop().create_future()
        carried.with_replica = replica
        in_flight.n_attempts += 1
        begun = Begun(tuple(in_flight.tokens), in_flight.identity or "") if in_flight.tokens else None
        in_flight.identity = in_flight.identity or replica.identity
        request = replace(in_flight.request, prompt=None, seed=in_flight.seed, begun=begun, timeout_s=None)
        names = self._each_stride(in_flight.page_names(replica.identity))
        self._book.begin(replica.key, in_flight.serial, names, in_flight.n_prompt, request.session)
        try:
            replica.link.send("submit", in_flight.serial, request, array("i", unpack(in_flight.prompt)))
            await carried.left
        finally:
            carried.with_replica = None
            self._book.end(replica.key, in_flight.serial)

    def _note_loss(self, carried: Carried) -> None:
        """Raises EngineFailedError where replica after replica is lost under it."""
        in_flight = carried.in_flight
        if in_flight.is_enough:
            self._finish(carried, in_flight.finished_event(None))
            return
        self.n_failovers += 1
        self.on_failover()
        carried.n_losses = 1 if len(in_flight.tokens) > carried.n_tokens_then else carried.n_losses + 1
        carried.n_tokens_then = len(in_flight.tokens)
        if carried.n_losses >= MOST_LOSSES:
            text = f"the request was given up: {carried.n_losses} replicas were lost while they worked at it"
            raise EngineFailedError(text)

    def _note_refusal(self, carried: Carried, replica: ReplicaLink, error: RequestError) -> None:
        """Another one may have room. Raises the error where none is left."""
        carried.full.add(replica.key)
        if not self._book.offered.keys() - self.links.unwanted - carried.full:
            raise error

    def _finish(self, carried: Carried, event: FinishedEvent) -> None:
        in_flight = carried.in_flight
        if in_flight.n_attempts > 1:
            event = replace(event, n_resumes=event.n_resumes + in_flight.n_attempts - 1)
        in_flight.finish(event)
        self._forget(carried)

    def _fail(self, carried: Carried, error: Exception) -> None:
        if carried.with_replica is not None:
            carried.with_replica.link.send("cancel", carried.in_flight.serial)
        if not carried.accepted.done():
            carried.accepted.set_exception(error)
            carried.accepted.exception()  # whoever asked may be gone
        carried.in_flight.fail(error)
        self._forget(carried)

    def _forget(self, carried: Carried) -> None:
        self._carried.pop(carried.in_flight.serial, None)
        if not carried.accepted.done():
            carried.accepted.set_result(None)
        if not carried.left.done():
            carried.left.set_result(None)
        elif carried.task is not None and carried.task is not asyncio.current_task():
            carried.task.cancel()  # it waits for a replica

    # LinkListener

    def replica_said(self, replica: ReplicaLink, message: Message) -> None:
        what, number, *rest = message
        if what in {"answer", "refused"}:
            self._note_answer(number, rest[0] if what == "answer" else failure_of(*rest))
            return
        carried = self._carried.get(number)
        if carried is None or carried.with_replica is not replica:
            return
        match what:
            case "tokens":
                self._note_tokens(carried, replica)
                carried.in_flight.deliver(rest[0])
            case "items":
                self._take_items(carried, replica, rest[0])
            case "accepted":
                if not carried.accepted.done():
                    carried.accepted.set_result(None)
            case "failed":
                self._note_failure(carried, failure_of(*rest))
            case "moved":
                _leave(carried, _Elsewhere(lost=False))
            case _:
                _LOG.error("unknown message from a replica: %.80r", what)

    def replica_lost(self, replica: ReplicaLink) -> None:
        self._book.forget(replica.key)
        for carried in tuple(self._carried.values()):
            if carried.with_replica is replica:
                _leave(carried, _Elsewhere(lost=True))
        for number, (asked_of, _) in tuple(self._asked.items()):
            if asked_of is replica:
                self._note_answer(number, EngineFailedError("the replica was lost"))
        for other in self.links:
            other.link.send("look")

    def _note_answer(self, number: int, said: object) -> None:
        _, asked = self._asked.get(number, (None, None))
        if asked is None or asked.done():
            return
        if isinstance(said, RequestError):
            asked.set_exception(said)
        else:
            asked.set_result(said)

    def _take_items(self, carried: Carried, replica: ReplicaLink, items: Sequence[Item]) -> None:
        in_flight = carried.in_flight
        tokens: list[int] = []
        for item in items:
            if isinstance(item, int):
                tokens.append(item)
            elif isinstance(item, TokenEvent):
                self._note_tokens(carried, replica)
                in_flight.deliver_with(item.token, item.logprobs or ())
            elif isinstance(item, PromptTokenEvent):
                in_flight.deliver_row(item)
            elif isinstance(item, PrefillEvent):
                if not in_flight.tokens:
                    in_flight.show(item)
            else:
                if tokens:
                    self._note_tokens(carried, replica)
                    in_flight.deliver(tokens)
                self._note_text(carried, replica)
                self._finish(carried, item)
                return
        if tokens:
            self._note_tokens(carried, replica)
            in_flight.deliver(tokens)

    def _note_tokens(self, carried: Carried, replica: ReplicaLink) -> None:
        if not carried.in_flight.tokens:
            self._book.has_read(replica.key, carried.in_flight.serial)

    def _note_text(self, carried: Carried, replica: ReplicaLink) -> None:
        """The next turn's prompt begins with this one's text."""
        in_flight = carried.in_flight
        names = tuple(page_names(in_flight.key + pack(in_flight.tokens), replica.identity))
        self._book.end(replica.key, in_flight.serial, self._each_stride(names))

    def _note_failure(self, carried: Carried, error: RequestError) -> None:
        if isinstance(error, QueueFullError) and not carried.in_flight.tokens:
            _leave(carried, _Elsewhere(lost=False, error=error))
        elif isinstance(error, EngineFailedError | SupervisorClosedError) and carried.with_replica is not None:
            carried.full.add(carried.with_replica.key)  # it has no engine any more
            _leave(carried, _Elsewhere(lost=True))
        else:
            _leave(carried, error)


def _leave(carried: Carried, why: Exception) -> None:
    if not carried.left.done():
        carried.left.set_exception(why)
