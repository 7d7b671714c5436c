"""Multiplexer: requests <-> lanes. Starts what may start, ends what has ended, and carries on what lost its engine.

All of it runs in the event loop's callbacks, without a task of its own: whatever happens changes the state and then
`_pump` starts what can start now. Policy is elsewhere (admission, router, slots, suspects); this file carries it out.
It must not know processes: monitors tell it which engines there are.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

from luce.protocol import Cancel, ErrorCode, GenerateOk, LocalProtocolError
from luce.supervisor.config import SupervisorConfig
from luce.supervisor.engine.client import EngineClient
from luce.supervisor.engine.generation import DeathCause, EngineDied, EngineError
from luce.supervisor.engine.info import EngineInfo
from luce.supervisor.engine.monitor import EngineMonitor
from luce.supervisor.engine.watchdog import EngineState
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
from luce.supervisor.scheduling.crash_attribution import CrashAttribution
from luce.supervisor.scheduling.engine_handle import EngineHandle
from luce.supervisor.scheduling.fair_queue import FairQueue, FullError, Ticket
from luce.supervisor.scheduling.in_flight_request import Attempt, InFlightRequest
from luce.supervisor.scheduling.router import Candidate, RecentSessions, choose

_MAX_COST_TOKENS = 1024  # of an answer, as long as nobody knows how long it will be
_FREED_BY_OTHERS = {
    ErrorCode.OUT_OF_MEMORY,
    ErrorCode.NO_ROOM,
    ErrorCode.INTERNAL,
    ErrorCode.QUEUE_FULL,
    ErrorCode.BUSY,
}
"""The engine could not serve a request now; alone it may."""


@dataclass(slots=True)
class Totals:
    """Since the start, for status and metrics."""

    n_requests: int = 0
    n_finished: int = 0
    n_failed: int = 0
    n_cancelled: int = 0
    n_resumes: int = 0
    n_tokens: int = 0


class Multiplexer:
    """Listens to monitors and to attempts. One for each supervisor."""

    def __init__(self, config: SupervisorConfig, monitors: Sequence[EngineMonitor]) -> None:
        self._config = config
        self._handles = {monitor: EngineHandle(monitor, config, several=len(monitors) > 1) for monitor in monitors}
        self._admission: FairQueue[InFlightRequest] = FairQueue(config.max_queue)
        self._tickets: dict[InFlightRequest, Ticket] = {}
        self._resumed: list[InFlightRequest] = []  # those that have run before come first, oldest first
        self._suspects: CrashAttribution[InFlightRequest] = CrashAttribution()
        self._sessions = RecentSessions()
        self._timers: dict[InFlightRequest, list[asyncio.TimerHandle]] = {}
        self._serials = itertools.count(1)
        self._pump_is_due = False
        self._closed = False
        self._mean_service_s = 1.0
        self.totals = Totals()

    # Callers

    def submit(self, request: GenerateRequest, prompt: tuple[int, ...]) -> InFlightRequest:
        """Take a request in. Raises RequestError."""
        if self._closed:
            raise SupervisorClosedError("the supervisor has been left")
        if not prompt:
            raise RequestRefusedError(ErrorCode.EMPTY_PROMPT, "a prompt needs at least one token")
        self._check_length(prompt)
        self._check_hope()
        seed = self._seed_of(request)
        try:
            in_flight = InFlightRequest(next(self._serials), request, prompt, seed)
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

    def close(self) -> None:
        """Every request fails, and no further one is taken."""
        self._closed = True
        error = SupervisorClosedError("the supervisor was left while the request ran")
        in_flight_requests = [*self._admission.clear(), *self._resumed]
        for handle in self._handles.values():
            in_flight_requests += [attempt.in_flight for attempt in handle.attempts if attempt.in_flight is not None]
        for in_flight in in_flight_requests:
            self._give_up(in_flight, error)

    # MonitorListener

    def engine_ready(self, monitor: EngineMonitor, client: EngineClient, info: EngineInfo) -> None:
        self._handles[monitor].open(client, info)
        self._schedule_pump()

    def engine_died(self, monitor: EngineMonitor, death: EngineDied) -> None:
        handle = self._handles[monitor]
        attempts = handle.close()
        running = [attempt.in_flight for attempt in attempts if attempt.in_flight is not None]
        blamed: list[InFlightRequest] = []
        if death.cause not in {DeathCause.STOPPED, DeathCause.CLOSED}:
            blamed = self._suspects.note_death(running, crashed=death.cause is DeathCause.CRASHED)
        for attempt in attempts:
            attempt.abandon()
        for in_flight in running:
            if in_flight in blamed:
                n_alone = self._suspects.n_alone(in_flight)
                text = f"the request was given up: {n_alone} engines have died while nothing else ran\n{death}"
                self._give_up(in_flight, EngineKillerError(text))
            else:
                in_flight.diverged = False
                self._requeue(in_flight)
        self._schedule_pump()

    def engine_failed(self, monitor: EngineMonitor) -> None:  # noqa: ARG002  it is one of the others' words
        try:
            self._check_hope()
        except EngineFailedError as error:
            for in_flight in [*self._admission.clear(), *self._resumed]:
                self._give_up(in_flight, error)
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

    def attempt_acquitted(self, attempt: Attempt) -> None:
        in_flight = attempt.in_flight
        assert in_flight is not None
        self._suspects.clear(in_flight)
        if attempt.is_alone and self._next_suspect() is not None:
            # The others are tried first, each alone; then all go on together.
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
        self._remove(attempt)
        in_flight = attempt.in_flight
        if in_flight is not None:
            attempt.abandon()
            n_new = final.n_prompt - final.n_reused + final.n_generated
            self._settle(in_flight, float(n_new))
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
        if failure.code in _FREED_BY_OTHERS and not self._suspects.note_failure(in_flight, alone=was_alone):
            self._requeue(in_flight)
        elif failure.code == ErrorCode.PROMPT_TOO_LONG:
            self._give_up(in_flight, PromptTooLongError(len(in_flight.prompt), None, failure.text))
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
        while self._start_a_suspect() or self._start_another():
            pass

    def _start_a_suspect(self) -> bool:
        """A suspect runs where nothing else does. While one waits, one engine takes nothing new until it is empty."""
        for handle in self._handles.values():
            handle.is_reserved = False
        suspect = self._next_suspect()
        if suspect is None:
            return False
        handles = [handle for handle in self._handles.values() if handle.is_open and not handle.hosts_alone]
        if not handles:
            return False
        handle = min(handles, key=lambda handle: len(handle.attempts))
        if handle.attempts:
            handle.is_reserved = True
            return False
        self._resumed.remove(suspect)
        self._start(suspect, handle, alone=True)
        return True

    def _next_suspect(self) -> InFlightRequest | None:
        """Those that have been tried less go first: their trials say what the others' are worth."""
        waiting = [in_flight for in_flight in self._resumed if self._suspects.must_run_alone(in_flight)]
        return min(waiting, key=lambda in_flight: (self._suspects.n_alone(in_flight), in_flight.serial), default=None)

    def _start_another(self) -> bool:
        handles = [handle for handle in self._handles.values() if handle.n_free > 0]
        if not handles:
            return False
        chosen: EngineHandle | None = None

        def accept(in_flight: InFlightRequest) -> bool:
            nonlocal chosen
            candidates = [
                Candidate(
                    handle,
                    len(handle.attempts),
                    handle.n_lanes,
                    handle.n_held(in_flight.key),
                    self._sessions.is_home(in_flight.request.session, handle),
                )
                for handle in handles
            ]
            handle = choose(candidates)
            if handle is None or (in_flight.request.reuse and handle.is_reading_what(in_flight.key)):
                return False  # another is reading the same: it waits rather than read it twice
            chosen = handle
            return True

        in_flight = next((f for f in self._resumed if not self._suspects.must_run_alone(f) and accept(f)), None)
        if in_flight is not None:
            self._resumed.remove(in_flight)
        else:
            in_flight = self._admission.next(accept)
        if in_flight is None or chosen is None:
            return False
        self._start(in_flight, chosen, alone=False)
        return True

    def _start(self, in_flight: InFlightRequest, handle: EngineHandle, *, alone: bool) -> None:
        if in_flight.is_full(handle.n_ctx):
            self._complete(in_flight, None)
            return
        identity = "" if handle.info is None else handle.info.identity
        if in_flight.tokens and in_flight.identity != identity:
            text = "the model was exchanged under the request: its text cannot go on with another one"
            self._give_up(in_flight, RequestRefusedError(ErrorCode.UNSUPPORTED, text))
            return
        in_flight.identity = identity
        if in_flight.started_s is None:
            in_flight.started_s = time.monotonic()
        attempt = Attempt(in_flight, self, n_to_acquittal=self._n_to_acquittal(in_flight))
        attempt.is_alone = alone
        in_flight.n_attempts += 1
        self._sessions.note(in_flight.request.session, handle)
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

    def _n_to_acquittal(self, in_flight: InFlightRequest) -> int:
        if not self._suspects.is_on_trial(in_flight):
            return 0
        after_crash = self._suspects.is_of_a_crash(in_flight)
        return max(self._config.crash_acquittal_tokens if after_crash else self._config.acquittal_tokens, 1)

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
        if in_flight.started_s is not None:
            self._mean_service_s += 0.1 * (time.monotonic() - in_flight.started_s - self._mean_service_s)
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
                return not handle.attempts
        return False

    def _forget(self, in_flight: InFlightRequest) -> None:
        self.totals.n_tokens += len(in_flight.tokens)
        self._suspects.forget(in_flight)
        self._tickets.pop(in_flight, None)
        for timer in self._timers.pop(in_flight, ()):
            timer.cancel()

    # Limits

    def _offer(self, in_flight: InFlightRequest, ticket: Ticket) -> None:
        n_free = sum(handle.n_free for handle in self._handles.values()) - len(self._resumed)
        try:
            self._admission.offer(in_flight, ticket, max(n_free, 0))
        except FullError:
            raise QueueFullError(self.n_waiting, self._retry_after_s()) from None
        self._tickets[in_flight] = ticket

    def _retry_after_s(self) -> float:
        n_lanes = sum(handle.n_lanes for handle in self._handles.values()) or 1
        return max(1.0, self._mean_service_s * (self.n_waiting + 1) / n_lanes)

    def _expire(self) -> None:
        # A timer may come a little early, and it comes once.
        for in_flight in self._admission.expire(asyncio.get_running_loop().time() + 0.01):
            waited_s = time.monotonic() - in_flight.asked_s
            self._give_up(in_flight, DeadlineError(f"the request has waited {waited_s:.1f} s for its turn"))

    def _call_later(self, in_flight: InFlightRequest, delay_s: float, act: object) -> None:
        assert callable(act)
        timer = asyncio.get_running_loop().call_later(delay_s, act)
        self._timers.setdefault(in_flight, []).append(timer)

    def _settle(self, in_flight: InFlightRequest, cost: float) -> None:
        ticket = self._tickets.get(in_flight)
        if ticket is not None:
            self._admission.settle(ticket, cost)

    def _check_length(self, prompt: tuple[int, ...]) -> None:
        limits = [handle.n_ctx for handle in self._handles.values()]
        known = [n_ctx for n_ctx in limits if n_ctx is not None]
        if known and len(known) == len(limits) and len(prompt) > max(known):
            raise PromptTooLongError(len(prompt), max(known))

    def _check_hope(self) -> None:
        """Raises EngineFailedError when no engine is left that could ever serve."""
        if all(monitor.state in {EngineState.FAILED, EngineState.STOPPING} for monitor in self._handles):
            causes = {str(monitor.last_failure) for monitor in self._handles if monitor.last_failure is not None}
            raise EngineFailedError("\n".join(["every engine was given up", *sorted(causes)]))
