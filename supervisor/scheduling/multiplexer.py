"""Multiplexer: requests <-> lanes. Starts what may start, ends what has ended, and carries on what lost its engine.

All of it runs in the event loop's callbacks, without a task of its own: whatever happens changes the state and then
`_pump` starts what can start now. Policy is elsewhere (fair_queue, router, slots, crash_attribution); this file carries
it out. It must not know processes: monitors tell it which engines there are.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable, Sequence

from luce.protocol import Cancel, ErrorCode, GenerateOk, LocalProtocolError
from luce.supervisor.config import SupervisorConfig
from luce.supervisor.engine.client import EngineClient
from luce.supervisor.engine.generation import FROM_OUTSIDE, OWN_FAULT, EngineDied, EngineError
from luce.supervisor.engine.info import EngineInfo
from luce.supervisor.engine.monitor import EngineMonitor
from luce.supervisor.engine.watchdog import EngineState
from luce.supervisor.prefix_cache.held_pages import HeldPages
from luce.supervisor.requests import (
    DeadlineError,
    EngineFailedError,
    EngineKillerError,
    GenerateRequest,
    PromptTooLongError,
    QueueFullError,
    RequestRefusedError,
    SupervisorClosedError,
)
from luce.supervisor.scheduling.engine_handle import EngineHandle
from luce.supervisor.scheduling.fair_queue import FairQueue, FullError, Ticket
from luce.supervisor.scheduling.in_flight_request import Attempt, InFlightRequest
from luce.supervisor.scheduling.placing import Placing
from luce.supervisor.scheduling.totals import Totals

_MAX_COST_TOKENS = 1024  # of an answer, as long as nobody knows how long it will be
_SERVED_ALONE = {ErrorCode.OUT_OF_MEMORY, ErrorCode.INTERNAL}
"""The engine could not serve the request; alone it may."""
_SERVED_LATER = {ErrorCode.NO_ROOM, ErrorCode.QUEUE_FULL, ErrorCode.BUSY}
"""The engine has no room for the request as long as others run."""


class Multiplexer:
    """Listens to monitors and to attempts. One for each supervisor."""

    def __init__(self, config: SupervisorConfig, monitors: Sequence[EngineMonitor]) -> None:
        self._config = config
        self.held_pages = HeldPages()
        several = len(monitors) > 1
        self._handles = {one: EngineHandle(one, config, self.held_pages, several=several) for one in monitors}
        self._admission: FairQueue[InFlightRequest] = FairQueue(config.max_queue)
        self._tickets: dict[InFlightRequest, Ticket] = {}
        self._resumed: list[InFlightRequest] = []  # those that have run before come first, oldest first
        self._timers: dict[InFlightRequest, list[asyncio.TimerHandle]] = {}
        self._serials = itertools.count(1)
        self._pump_is_due = False
        self._closed = False
        self._engines_changed = asyncio.Event()
        self.totals = Totals()
        self._placing = Placing(self.handles, config, self.totals, self._schedule_pump)
        self.on_change: Callable[[], None] = lambda: None
        """Called after something has come, started, ended or died."""

    # Callers

    def submit(self, request: GenerateRequest, prompt: Sequence[int]) -> InFlightRequest:
        """Take a request in. Raises RequestError."""
        if self._closed:
            raise SupervisorClosedError("the supervisor has been left")
        if len(prompt) == 0:
            raise RequestRefusedError(ErrorCode.EMPTY_PROMPT, "a prompt needs at least one token")
        self._check_length(request, len(prompt))
        self._try_failed_again()
        self._check_hope()
        try:
            in_flight = InFlightRequest(next(self._serials), request, prompt, self._seed_of(request))
        except (OverflowError, TypeError):
            raise RequestRefusedError(ErrorCode.BAD_ARGS, "a prompt is a sequence of ids, 0 .. 2^31-1") from None
        now_s = asyncio.get_running_loop().time()
        queue_timeout_s = self._config.queue_timeout_s if request.queue_timeout_s is None else request.queue_timeout_s
        ticket = Ticket(
            request.client,
            request.priority,
            float(len(prompt) + min(request.max_tokens, _MAX_COST_TOKENS)),
            None if queue_timeout_s is None else now_s + queue_timeout_s,
        )
        self._offer(in_flight, ticket)
        self.totals.n_requests += 1
        if queue_timeout_s is not None:
            self._call_later(in_flight, queue_timeout_s, self._expire)
        if request.timeout_s is not None:
            text = f"the request was to take {request.timeout_s:g} s at most"
            self._call_later(in_flight, request.timeout_s, lambda: self._give_up(in_flight, DeadlineError(text)))
        self._schedule_pump()
        return in_flight

    def _seed_of(self, request: GenerateRequest) -> int:
        if request.seed is not None:
            return request.seed
        return secrets.randbits(63) if self._config.seed is None else self._config.seed

    def cancel(self, in_flight: InFlightRequest) -> None:
        """Its caller is gone: safe at any time."""
        if not in_flight.finished:
            self.totals.n_cancelled += 1
            self._give_up(in_flight, SupervisorClosedError("the request was cancelled"))

    def end(self, in_flight: InFlightRequest) -> None:
        """Its caller wants no further token: it is finished with what it took once its engine has stopped."""
        if in_flight.finished or in_flight.is_enough:
            return
        in_flight.is_enough = True
        for handle in self._handles.values():
            for attempt in handle.attempts:
                if attempt.in_flight is in_flight:
                    handle.post(Cancel(id=attempt.id))
                    return
        self._admission.remove(in_flight)
        if in_flight in self._resumed:
            self._resumed.remove(in_flight)
        self._complete(in_flight, None)

    @property
    def n_waiting(self) -> int:
        return len(self._admission) + len(self._resumed)

    def handle(self, monitor: EngineMonitor) -> EngineHandle:
        return self._handles[monitor]

    @property
    def n_running(self) -> int:
        return sum(len(handle.attempts) for handle in self._handles.values())

    @property
    def handles(self) -> Sequence[EngineHandle]:
        """As the monitors."""
        return tuple(self._handles.values())

    def set_aside(self, only: InFlightRequest | None = None) -> None:
        """What runs (or this one) stops, and goes on from where it is when something can start again."""
        attempts = [attempt for handle in self._handles.values() for attempt in handle.attempts]
        for attempt in attempts:
            if (in_flight := attempt.in_flight) is not None and only in {None, in_flight}:
                self._stop(attempt)
                self._requeue(in_flight)

    def look_again(self) -> None:
        """Handles may take requests that they did not take before."""
        self._engines_changed.set()
        self._note_room()
        self._schedule_pump()

    def fail_waiting(self, error: Exception) -> None:
        """Nothing will serve what waits."""
        for in_flight in [*self._admission.clear(), *self._resumed]:
            self._give_up(in_flight, error)

    async def engine(self, load: Callable[[EngineHandle], int]) -> EngineHandle:
        """The least loaded engine, for work without a lane, once one is there. Raises EngineFailedError where none will
        be, SupervisorClosedError."""
        self._try_failed_again()
        while True:
            if self._closed:
                raise SupervisorClosedError("the supervisor has been left")
            self._check_hope()
            there = [handle for handle in self._handles.values() if handle.is_here]
            if there:
                return min(there, key=lambda handle: (load(handle), handle.hosts_alone, len(handle.attempts)))
            self._engines_changed.clear()
            await self._engines_changed.wait()

    def close(self) -> None:
        """Every request fails, and no further one is taken."""
        self._closed = True
        self._placing.close()
        self._engines_changed.set()
        error = SupervisorClosedError("the supervisor was left while the request ran")
        in_flight_requests = [*self._admission.clear(), *self._resumed]
        for handle in self._handles.values():
            in_flight_requests += [attempt.in_flight for attempt in handle.attempts if attempt.in_flight is not None]
        for in_flight in in_flight_requests:
            self._give_up(in_flight, error)

    # MonitorListener

    def engine_ready(self, monitor: EngineMonitor, client: EngineClient, info: EngineInfo) -> None:
        self._handles[monitor].open(client, info)
        self.look_again()

    def engine_died(self, monitor: EngineMonitor, death: EngineDied) -> None:
        handle = self._handles[monitor]
        attempts = handle.close()
        running = [attempt.in_flight for attempt in attempts if attempt.in_flight is not None]
        for attempt in attempts:
            attempt.abandon()
        for in_flight in running:
            failures = in_flight.failures
            if death.cause not in FROM_OUTSIDE:
                alone = len(running) == 1 and not handle.compressing.locked()
                failures.note_death(alone=alone, own_fault=death.cause in OWN_FAULT)
            if failures.is_hopeless:
                text = f"the request was given up: {failures.n_alone} engines have died while nothing else ran\n{death}"
                self._give_up(in_flight, EngineKillerError(text))
            else:
                in_flight.diverged = False
                self._requeue(in_flight)
        self._schedule_pump()

    def engine_failed(self, monitor: EngineMonitor) -> None:  # noqa: ARG002  it is one of the others' words
        self._engines_changed.set()
        try:
            self._check_hope()
        except EngineFailedError as error:
            self.fail_waiting(error)
        self._schedule_pump()

    def engine_has_requests(self, monitor: EngineMonitor) -> bool:
        return bool(self._handles[monitor].attempts)

    def engine_is_late(self, monitor: EngineMonitor, now_s: float) -> str | None:
        limit_s = max(self._config.final_timeout_s, self._config.slow_factor * monitor.slowest_step_s)
        for attempt in self._handles[monitor].attempts:
            if attempt.ended_s is not None and now_s - attempt.ended_s > limit_s:
                return f"request {attempt.id} has ended on one channel, and for {limit_s:g} s not on the other"
        return None

    # AttemptListener

    def attempt_moved(self, attempt: Attempt) -> None:  # noqa: ARG002
        if self.n_waiting:
            self._schedule_pump()  # others may have waited for what it was reading

    def attempt_went_on(self, attempt: Attempt) -> None:
        in_flight = attempt.in_flight
        assert in_flight is not None
        in_flight.failures.clear()
        if attempt.is_alone and self._next_to_run_alone() is not None:
            # The others have their turn first, each alone; then all go on together.
            self._stop(attempt)
            self._requeue(in_flight)
        attempt.is_alone = False
        self._schedule_pump()

    def attempt_diverged(self, attempt: Attempt) -> None:
        in_flight = attempt.in_flight
        assert in_flight is not None
        self._stop(attempt)
        in_flight.diverged = True
        self._requeue(in_flight)
        self._schedule_pump()

    def attempt_snapshot(self, attempt: Attempt, slot: int, *, taken: bool) -> None:
        for handle in self._handles.values():
            if attempt in handle.attempts:
                handle.note_snapshot(attempt, slot, taken=taken)

    def attempt_ended(self, attempt: Attempt, final: GenerateOk) -> None:
        self._placing.note_end(attempt, final)
        self._remove(attempt)
        in_flight = attempt.in_flight
        if in_flight is not None:
            attempt.abandon()
            n_read = final.n_prompt if final.n_read is None else final.n_read
            in_flight.n_computed = n_read - final.n_reused + final.n_generated
            self._complete(in_flight, final)
        self._schedule_pump()

    def attempt_failed(self, attempt: Attempt, failure: Exception) -> None:
        if not isinstance(failure, EngineError):
            return  # the engine has died: `engine_died` has seen to it, or `_start` will
        was_alone = self._remove(attempt)
        in_flight = attempt.in_flight
        if in_flight is None:
            self._schedule_pump()
            return
        attempt.abandon()
        if failure.code in _SERVED_ALONE:
            in_flight.failures.note_error(alone=was_alone)
        elif failure.code in _SERVED_LATER:
            in_flight.failures.note_refusal(alone=was_alone)
        if failure.code in _SERVED_ALONE | _SERVED_LATER and not in_flight.failures.is_hopeless:
            in_flight.waits_for_room = failure.code in _SERVED_LATER and not was_alone
            self._requeue(in_flight)
        elif failure.code == ErrorCode.PROMPT_TOO_LONG:
            self._give_up(in_flight, PromptTooLongError(in_flight.n_prompt, None, failure.text))
        else:
            self._give_up(in_flight, RequestRefusedError(failure.code, failure.text))
        self._schedule_pump()

    # Starting

    def _schedule_pump(self) -> None:
        if not self._pump_is_due and not self._closed:
            self._pump_is_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_is_due = False
        if self._closed:
            return
        while self._start_one_alone() or self._start_another():
            pass
        self.on_change()

    def _start_one_alone(self) -> bool:
        """Where nothing else runs. While one waits for that, one engine takes nothing new until it is empty."""
        for handle in self._handles.values():
            handle.is_reserved = False
        in_flight = self._next_to_run_alone()
        if in_flight is None:
            return False
        handles = [handle for handle in self._handles.values() if handle.is_here and not handle.hosts_alone]
        if not handles:
            return False
        handle = min(handles, key=lambda handle: len(handle.attempts))
        if handle.attempts:
            handle.is_reserved = True
            return False
        self._resumed.remove(in_flight)
        self._start(in_flight, handle, alone=True)
        return True

    def _next_to_run_alone(self) -> InFlightRequest | None:
        """Those under which fewer engines have died go first: one that kills each of them holds up nobody else."""
        waiting = [in_flight for in_flight in self._resumed if in_flight.failures.must_run_alone]
        return min(waiting, key=lambda in_flight: (in_flight.failures.n_alone, in_flight.serial), default=None)

    def _note_room(self) -> None:
        """Something has ended: who was refused for want of room may try again."""
        for in_flight in self._resumed:
            in_flight.waits_for_room = False

    def _start_another(self) -> bool:
        if not any(handle.n_free > 0 for handle in self._handles.values()):
            return False
        chosen: EngineHandle | None = None

        def accept(in_flight: InFlightRequest) -> bool:
            nonlocal chosen
            chosen = self._placing.choose(in_flight, self.n_waiting)
            return chosen is not None

        ready = (f for f in self._resumed if not (f.failures.must_run_alone or f.waits_for_room or f.waits_for_files))
        in_flight = next((f for f in ready if accept(f)), None)
        if in_flight is not None:
            self._resumed.remove(in_flight)
        else:
            in_flight = self._admission.next(accept)
            if in_flight is not None:
                in_flight.was_admitted = True
        if in_flight is None or chosen is None:
            return False
        self._start(in_flight, chosen, alone=False)
        return True

    def _start(self, in_flight: InFlightRequest, handle: EngineHandle, *, alone: bool) -> None:
        in_parts = handle.may_read_parts(in_flight.request, in_flight.n_prompt)
        if in_flight.is_full(None if in_parts else handle.n_ctx):  # how much of it parts take, the engine knows
            self._complete(in_flight, None)
            return
        identity = "" if handle.info is None else handle.info.identity
        if in_flight.tokens and in_flight.identity != identity:
            text = "the model was exchanged under the request: its text cannot go on with another one"
            self._give_up(in_flight, RequestRefusedError(ErrorCode.UNSUPPORTED, text))
            return
        in_flight.identity = identity
        in_flight.waits_for_room = False
        if in_flight.started_s is None:
            in_flight.started_s = time.monotonic()
        attempt = Attempt(in_flight, self, n_to_clear=self._config.acquittal_tokens)
        attempt.is_alone = alone
        in_flight.n_attempts += 1
        self._placing.note_start(in_flight, handle)
        try:
            handle.start(attempt, in_flight)
        except EngineDied:
            # The handle is closed by now. An attempt that it knew was requeued with the others; this one it did not.
            in_flight.n_attempts -= 1
            self._requeue(in_flight)
        except (LocalProtocolError, ValueError, TypeError) as error:
            self._give_up(in_flight, RequestRefusedError(ErrorCode.BAD_ARGS, str(error)))
        except OSError as error:
            self._give_up(
                in_flight, RequestRefusedError(ErrorCode.IO_ERROR, f"its prompt could not be handed on: {error}")
            )

    # Ending

    def _requeue(self, in_flight: InFlightRequest) -> None:
        """It goes on with the next engine."""
        if in_flight.finished:
            return
        if in_flight.is_enough:
            self._complete(in_flight, None)
            return
        self.totals.n_resumes += 1
        self._resumed.append(in_flight)
        self._resumed.sort(key=lambda other: other.serial)
        try:
            self._check_hope()
        except EngineFailedError as error:
            self._give_up(in_flight, error)

    def _complete(self, in_flight: InFlightRequest, final: GenerateOk | None) -> None:
        self.totals.n_finished += 1
        in_flight.finish(in_flight.finished_event(final))
        self._forget(in_flight)

    def _give_up(self, in_flight: InFlightRequest, error: Exception) -> None:
        """It ends wherever it is."""
        if in_flight.finished:
            return
        self.totals.n_failed += not isinstance(error, SupervisorClosedError)
        self._admission.remove(in_flight)
        if in_flight in self._resumed:
            self._resumed.remove(in_flight)
        for handle in self._handles.values():
            for attempt in list(handle.attempts):
                if attempt.in_flight is in_flight:
                    self._stop(attempt)
        in_flight.fail(error)
        self._forget(in_flight)
        self._schedule_pump()

    def _stop(self, attempt: Attempt) -> None:
        """The engine is to end it; its lane is free once it says so."""
        attempt.abandon()
        for handle in self._handles.values():
            if attempt in handle.attempts:
                handle.post(Cancel(id=attempt.id))

    def _remove(self, attempt: Attempt) -> bool:
        """Its lane is free again. Returns whether nothing else ran beside it."""
        for handle in self._handles.values():
            if attempt in handle.attempts:
                handle.remove(attempt)
                self._note_room()
                return not handle.attempts
        return False

    def _forget(self, in_flight: InFlightRequest) -> None:
        self._placing.forget(in_flight)
        self.totals.n_tokens += len(in_flight.tokens) - in_flight.n_begun
        ticket = self._tickets.pop(in_flight, None)
        if ticket is not None and in_flight.was_admitted:
            n_computed = in_flight.n_computed
            self._admission.settle(ticket, ticket.cost if n_computed is None else float(n_computed))
        for timer in self._timers.pop(in_flight, ()):
            timer.cancel()

    # Limits

    def _offer(self, in_flight: InFlightRequest, ticket: Ticket) -> None:
        if in_flight.tokens:  # it has had its turn elsewhere
            self._requeue(in_flight)
            return
        n_free = sum(handle.n_free for handle in self._handles.values()) - len(self._resumed)
        try:
            self._admission.offer(in_flight, ticket, max(n_free, 0))
        except FullError:
            retry_after_s = max(1.0, self._placing.wait_s(self.n_waiting))
            raise QueueFullError(self.n_waiting, retry_after_s) from None
        self._tickets[in_flight] = ticket

    def _expire(self) -> None:
        # A timer may come a little early, and it comes once.
        for in_flight in self._admission.expire(asyncio.get_running_loop().time() + 0.01):
            waited_s = time.monotonic() - in_flight.asked_s
            self._give_up(in_flight, DeadlineError(f"the request has waited {waited_s:.1f} s for its turn"))

    def _call_later(self, in_flight: InFlightRequest, delay_s: float, act: Callable[[], None]) -> None:
        timer = asyncio.get_running_loop().call_later(delay_s, act)
        self._timers.setdefault(in_flight, []).append(timer)

    def _check_length(self, request: GenerateRequest, n_prompt: int) -> None:
        limits = [handle.n_ctx for handle in self._handles.values()]
        known = [n_ctx for n_ctx in limits if n_ctx is not None]
        is_too_long = bool(known) and len(known) == len(limits) and n_prompt > max(known)
        if is_too_long and not any(handle.may_read_parts(request, n_prompt) for handle in self._handles.values()):
            raise PromptTooLongError(n_prompt, max(known))

    def _try_failed_again(self) -> None:
        """Somebody wants engines: those that were given up long ago get another chance."""
        for monitor in self._handles:
            monitor.try_again()

    def _check_hope(self) -> None:
        """Raises EngineFailedError when no engine is left that could serve."""
        if all(monitor.state in {EngineState.FAILED, EngineState.STOPPING} for monitor in self._handles):
            causes = sorted({str(monitor.last_failure) for monitor in self._handles if monitor.last_failure})
            raise EngineFailedError("\n".join(["every engine was given up", *causes]))
