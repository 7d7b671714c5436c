"""Multiplexer: requests <-> lanes. Starts what may start, ends what has ended, and carries on what lost its engine.

All of it runs in the event loop's callbacks, without a task of its own: whatever happens changes the state and then
`_pump` starts what can start now. Policy is elsewhere (admission, router, slots, suspects); this file carries it out.
It must not know processes: keepers tell it which engines there are.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

from luce.protocol import Cancel, ErrorCode, GenerateOk, LocalProtocolError
from luce.supervisor.admission import Admission, FullError, Ticket
from luce.supervisor.berth import Berth
from luce.supervisor.client import EngineClient
from luce.supervisor.config import SupervisorConfig
from luce.supervisor.engine_info import EngineInfo
from luce.supervisor.flight import Attempt, Flight
from luce.supervisor.generation import DeathCause, EngineDied, EngineError
from luce.supervisor.guard import EngineState
from luce.supervisor.keeper import EngineKeeper
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
from luce.supervisor.router import Candidate, RecentSessions, choose
from luce.supervisor.suspects import Suspects

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
    """Listens to keepers and to attempts. One for each supervisor."""

    def __init__(self, config: SupervisorConfig, keepers: Sequence[EngineKeeper]) -> None:
        self._config = config
        self._berths = {keeper: Berth(keeper, config, several=len(keepers) > 1) for keeper in keepers}
        self._admission: Admission[Flight] = Admission(config.max_queue)
        self._tickets: dict[Flight, Ticket] = {}
        self._resumed: list[Flight] = []  # those that have run before come first, oldest first
        self._suspects: Suspects[Flight] = Suspects()
        self._sessions = RecentSessions()
        self._timers: dict[Flight, list[asyncio.TimerHandle]] = {}
        self._serials = itertools.count(1)
        self._pump_is_due = False
        self._closed = False
        self._mean_service_s = 1.0
        self.totals = Totals()

    # Callers

    def submit(self, request: GenerateRequest, prompt: tuple[int, ...]) -> Flight:
        """Take a request in. Raises RequestError."""
        if self._closed:
            raise SupervisorClosedError("the supervisor has been left")
        if not prompt:
            raise RequestRefusedError(ErrorCode.EMPTY_PROMPT, "a prompt needs at least one token")
        self._check_length(prompt)
        self._check_hope()
        seed = self._seed_of(request)
        try:
            flight = Flight(next(self._serials), request, prompt, seed)
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
        self._offer(flight, ticket)
        self.totals.n_requests += 1
        if queue_timeout_s is not None:
            self._call_later(flight, queue_timeout_s, self._expire)
        if request.timeout_s is not None:
            text = f"the request was to take {request.timeout_s:g} s at most"
            self._call_later(flight, request.timeout_s, lambda: self._give_up(flight, DeadlineError(text)))
        self._schedule_pump()
        return flight

    def _seed_of(self, request: GenerateRequest) -> int:
        if request.seed is not None:
            return request.seed
        return secrets.randbits(63) if self._config.seed is None else self._config.seed

    def cancel(self, flight: Flight) -> None:
        """Its caller is gone: safe at any time."""
        if not flight.finished:
            self.totals.n_cancelled += 1
            self._give_up(flight, SupervisorClosedError("the request was cancelled"))

    def end(self, flight: Flight) -> None:
        """Its caller wants no further token: it is finished with what it took once its engine has stopped."""
        if flight.finished or flight.is_enough:
            return
        flight.is_enough = True
        for berth in self._berths.values():
            for attempt in berth.attempts:
                if attempt.flight is flight:
                    berth.post(Cancel(id=attempt.id))
                    return
        self._admission.remove(flight)
        if flight in self._resumed:
            self._resumed.remove(flight)
        self._complete(flight, None)

    @property
    def n_waiting(self) -> int:
        return len(self._admission) + len(self._resumed)

    def berth(self, keeper: EngineKeeper) -> Berth:
        return self._berths[keeper]

    def close(self) -> None:
        """Every request fails, and no further one is taken."""
        self._closed = True
        error = SupervisorClosedError("the supervisor was left while the request ran")
        flights = [*self._admission.clear(), *self._resumed]
        for berth in self._berths.values():
            flights += [attempt.flight for attempt in berth.attempts if attempt.flight is not None]
        for flight in flights:
            self._give_up(flight, error)

    # KeeperListener

    def engine_ready(self, keeper: EngineKeeper, client: EngineClient, info: EngineInfo) -> None:
        self._berths[keeper].open(client, info)
        self._schedule_pump()

    def engine_died(self, keeper: EngineKeeper, death: EngineDied) -> None:
        berth = self._berths[keeper]
        attempts = berth.close()
        running = [attempt.flight for attempt in attempts if attempt.flight is not None]
        convicted: list[Flight] = []
        if death.cause not in {DeathCause.STOPPED, DeathCause.CLOSED}:
            convicted = self._suspects.note_death(running, crashed=death.cause is DeathCause.CRASHED)
        for attempt in attempts:
            attempt.abandon()
        for flight in running:
            if flight in convicted:
                n_alone = self._suspects.n_alone(flight)
                text = f"the request was given up: {n_alone} engines have died while nothing else ran\n{death}"
                self._give_up(flight, EngineKillerError(text))
            else:
                flight.diverged = False
                self._requeue(flight)
        self._schedule_pump()

    def engine_failed(self, keeper: EngineKeeper) -> None:  # noqa: ARG002  it is one of the others' words
        try:
            self._check_hope()
        except EngineFailedError as error:
            for flight in [*self._admission.clear(), *self._resumed]:
                self._give_up(flight, error)
        self._schedule_pump()

    def engine_has_requests(self, keeper: EngineKeeper) -> bool:
        return bool(self._berths[keeper].attempts)

    def engine_is_late(self, keeper: EngineKeeper, now_s: float) -> str | None:
        limit_s = max(self._config.final_timeout_s, self._config.slow_factor * keeper.slowest_step_s)
        for attempt in self._berths[keeper].attempts:
            if attempt.ended_s is not None and now_s - attempt.ended_s > limit_s:
                return f"request {attempt.id} has ended on one channel, and for {limit_s:g} s not on the other"
        return None

    # AttemptListener

    def attempt_moved(self, attempt: Attempt) -> None:  # noqa: ARG002
        if self.n_waiting:
            self._schedule_pump()  # others may have waited for what it was reading

    def attempt_acquitted(self, attempt: Attempt) -> None:
        flight = attempt.flight
        assert flight is not None
        self._suspects.acquit(flight)
        if attempt.is_alone and self._next_suspect() is not None:
            # The others are tried first, each alone; then all go on together.
            self._stop(attempt)
            self._requeue(flight)
        attempt.is_alone = False
        self._schedule_pump()

    def attempt_diverged(self, attempt: Attempt) -> None:
        flight = attempt.flight
        assert flight is not None
        self._stop(attempt)
        flight.diverged = True
        self._requeue(flight)
        self._schedule_pump()

    def attempt_snapshot(self, attempt: Attempt, slot: int, *, taken: bool) -> None:
        for berth in self._berths.values():
            if attempt in berth.attempts:
                berth.note_snapshot(attempt, slot, taken=taken)

    def attempt_ended(self, attempt: Attempt, final: GenerateOk) -> None:
        self._remove(attempt)
        flight = attempt.flight
        if flight is not None:
            attempt.abandon()
            n_new = final.n_prompt - final.n_reused + final.n_generated
            self._settle(flight, float(n_new))
            self._complete(flight, final)
        self._schedule_pump()

    def attempt_failed(self, attempt: Attempt, failure: Exception) -> None:
        if not isinstance(failure, EngineError):
            return  # the engine has died: `engine_died` has seen to it, or `_start` will
        was_alone = self._remove(attempt)
        flight = attempt.flight
        if flight is None:
            self._schedule_pump()
            return
        attempt.abandon()
        if failure.code in _FREED_BY_OTHERS and not self._suspects.note_failure(flight, alone=was_alone):
            self._requeue(flight)
        elif failure.code == ErrorCode.PROMPT_TOO_LONG:
            self._give_up(flight, PromptTooLongError(len(flight.prompt), None, failure.text))
        else:
            self._give_up(flight, RequestRefusedError(failure.code, failure.text))
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
        for berth in self._berths.values():
            berth.is_reserved = False
        suspect = self._next_suspect()
        if suspect is None:
            return False
        berths = [berth for berth in self._berths.values() if berth.is_open and not berth.hosts_alone]
        if not berths:
            return False
        berth = min(berths, key=lambda berth: len(berth.attempts))
        if berth.attempts:
            berth.is_reserved = True
            return False
        self._resumed.remove(suspect)
        self._start(suspect, berth, alone=True)
        return True

    def _next_suspect(self) -> Flight | None:
        """Those that have been tried less go first: their trials say what the others' are worth."""
        waiting = [flight for flight in self._resumed if self._suspects.must_run_alone(flight)]
        return min(waiting, key=lambda flight: (self._suspects.n_alone(flight), flight.serial), default=None)

    def _start_another(self) -> bool:
        berths = [berth for berth in self._berths.values() if berth.n_free > 0]
        if not berths:
            return False
        chosen: Berth | None = None

        def accept(flight: Flight) -> bool:
            nonlocal chosen
            candidates = [
                Candidate(
                    berth,
                    len(berth.attempts),
                    berth.n_lanes,
                    berth.n_held(flight.key),
                    self._sessions.is_home(flight.request.session, berth),
                )
                for berth in berths
            ]
            berth = choose(candidates)
            if berth is None or (flight.request.reuse and berth.is_reading_what(flight.key)):
                return False  # another is reading the same: it waits rather than read it twice
            chosen = berth
            return True

        flight = next((f for f in self._resumed if not self._suspects.must_run_alone(f) and accept(f)), None)
        if flight is not None:
            self._resumed.remove(flight)
        else:
            flight = self._admission.next(accept)
        if flight is None or chosen is None:
            return False
        self._start(flight, chosen, alone=False)
        return True

    def _start(self, flight: Flight, berth: Berth, *, alone: bool) -> None:
        if flight.is_full(berth.n_ctx):
            self._complete(flight, None)
            return
        identity = "" if berth.info is None else berth.info.identity
        if flight.tokens and flight.identity != identity:
            text = "the model was exchanged under the request: its text cannot go on with another one"
            self._give_up(flight, RequestRefusedError(ErrorCode.UNSUPPORTED, text))
            return
        flight.identity = identity
        if flight.started_s is None:
            flight.started_s = time.monotonic()
        attempt = Attempt(flight, self, n_to_acquittal=self._n_to_acquittal(flight))
        attempt.is_alone = alone
        flight.n_attempts += 1
        self._sessions.note(flight.request.session, berth)
        try:
            berth.start(attempt, flight)
        except EngineDied:
            # The berth is closed by now. An attempt that it knew was requeued with the others; this one it did not.
            flight.n_attempts -= 1
            self._requeue(flight)
        except (LocalProtocolError, ValueError, TypeError) as error:
            self._give_up(flight, RequestRefusedError(ErrorCode.BAD_ARGS, str(error)))
        except OSError as error:
            self._give_up(
                flight, RequestRefusedError(ErrorCode.IO_ERROR, f"its prompt could not be handed on: {error}")
            )

    def _n_to_acquittal(self, flight: Flight) -> int:
        if not self._suspects.is_on_trial(flight):
            return 0
        after_crash = self._suspects.is_of_a_crash(flight)
        return max(self._config.crash_acquittal_tokens if after_crash else self._config.acquittal_tokens, 1)

    # Ending

    def _requeue(self, flight: Flight) -> None:
        """It goes on with the next engine."""
        if flight.finished:
            return
        if flight.is_enough:
            self._complete(flight, None)
            return
        self.totals.n_resumes += 1
        self._resumed.append(flight)
        self._resumed.sort(key=lambda other: other.serial)
        try:
            self._check_hope()
        except EngineFailedError as error:
            self._give_up(flight, error)

    def _complete(self, flight: Flight, final: GenerateOk | None) -> None:
        self.totals.n_finished += 1
        flight.finish(flight.finished_event(final))
        if flight.started_s is not None:
            self._mean_service_s += 0.1 * (time.monotonic() - flight.started_s - self._mean_service_s)
        self._forget(flight)

    def _give_up(self, flight: Flight, error: Exception) -> None:
        """It ends wherever it is."""
        if flight.finished:
            return
        self.totals.n_failed += not isinstance(error, SupervisorClosedError)
        self._admission.remove(flight)
        if flight in self._resumed:
            self._resumed.remove(flight)
        for berth in self._berths.values():
            for attempt in list(berth.attempts):
                if attempt.flight is flight:
                    self._stop(attempt)
        flight.fail(error)
        self._forget(flight)
        self._schedule_pump()

    def _stop(self, attempt: Attempt) -> None:
        """The engine is to end it; its lane is free once it says so."""
        attempt.abandon()
        for berth in self._berths.values():
            if attempt in berth.attempts:
                berth.post(Cancel(id=attempt.id))

    def _remove(self, attempt: Attempt) -> bool:
        """Its lane is free again. Returns whether nothing else ran beside it."""
        for berth in self._berths.values():
            if attempt in berth.attempts:
                berth.remove(attempt)
                return not berth.attempts
        return False

    def _forget(self, flight: Flight) -> None:
        self.totals.n_tokens += len(flight.tokens)
        self._suspects.forget(flight)
        self._tickets.pop(flight, None)
        for timer in self._timers.pop(flight, ()):
            timer.cancel()

    # Limits

    def _offer(self, flight: Flight, ticket: Ticket) -> None:
        n_free = sum(berth.n_free for berth in self._berths.values()) - len(self._resumed)
        try:
            self._admission.offer(flight, ticket, max(n_free, 0))
        except FullError:
            raise QueueFullError(self.n_waiting, self._retry_after_s()) from None
        self._tickets[flight] = ticket

    def _retry_after_s(self) -> float:
        n_lanes = sum(berth.n_lanes for berth in self._berths.values()) or 1
        return max(1.0, self._mean_service_s * (self.n_waiting + 1) / n_lanes)

    def _expire(self) -> None:
        # A timer may come a little early, and it comes once.
        for flight in self._admission.expire(asyncio.get_running_loop().time() + 0.01):
            waited_s = time.monotonic() - flight.asked_s
            self._give_up(flight, DeadlineError(f"the request has waited {waited_s:.1f} s for its turn"))

    def _call_later(self, flight: Flight, delay_s: float, act: object) -> None:
        assert callable(act)
        timer = asyncio.get_running_loop().call_later(delay_s, act)
        self._timers.setdefault(flight, []).append(timer)

    def _settle(self, flight: Flight, cost: float) -> None:
        ticket = self._tickets.get(flight)
        if ticket is not None:
            self._admission.settle(ticket, cost)

    def _check_length(self, prompt: tuple[int, ...]) -> None:
        limits = [berth.n_ctx for berth in self._berths.values()]
        known = [n_ctx for n_ctx in limits if n_ctx is not None]
        if known and len(known) == len(limits) and len(prompt) > max(known):
            raise PromptTooLongError(len(prompt), max(known))

    def _check_hope(self) -> None:
        """Raises EngineFailedError when no engine is left that could ever serve."""
        if all(keeper.state in {EngineState.FAILED, EngineState.STOPPING} for keeper in self._berths):
            causes = {str(keeper.last_failure) for keeper in self._berths if keeper.last_failure is not None}
            raise EngineFailedError("\n".join(["every engine was given up", *sorted(causes)]))
