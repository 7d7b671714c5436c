"""When is an engine alive, and when is it started again? Decisions only: no process, no clock, no task.

The states of an engine are a table; restarts back off and are limited; liveness is judged from what was heard, against
deadlines that follow the slowest step seen, because a slow engine is not a dead one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EngineState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    BACKOFF = "backoff"
    AWAY = "away"
    STOPPING = "stopping"
    FAILED = "failed"


_S = EngineState
TRANSITIONS: dict[EngineState, frozenset[EngineState]] = {
    _S.STARTING: frozenset({_S.READY, _S.BACKOFF, _S.AWAY, _S.STOPPING, _S.FAILED}),
    _S.READY: frozenset({_S.BACKOFF, _S.AWAY, _S.STOPPING, _S.FAILED}),
    _S.BACKOFF: frozenset({_S.STARTING, _S.AWAY, _S.STOPPING}),
    _S.AWAY: frozenset({_S.STARTING, _S.STOPPING}),
    _S.STOPPING: frozenset(),
    _S.FAILED: frozenset({_S.STARTING, _S.STOPPING}),
}


_LOOK_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """An engine that did some work before it died is started again at once. One that did none waits, longer each time,
    and is given up after `limit` deaths in a row. After `max_delay_s` a request may have it tried once more. Deaths
    with requests in it are these requests' affair: crash attribution."""

    first_delay_s: float = 0.1
    factor: float = 2.0
    max_delay_s: float = 30.0
    limit: int = 10


class Lifecycle:
    """The state of one engine, and how often it has died."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self.state = EngineState.STARTING
        self.n_deaths = 0
        self.n_idle_deaths = 0  # in a row, without any work in between

    def to(self, state: EngineState) -> None:
        """REQUIRES: the table allows it."""
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state

    def note_death(self, *, did_work: bool, had_requests: bool = False) -> float | None:
        """Seconds to wait before the next start; nothing when there is to be none. The state follows."""
        self.n_deaths += 1
        if did_work:
            self.n_idle_deaths = 0
        elif had_requests:
            self.to(EngineState.BACKOFF)
            return self._policy.first_delay_s
        else:
            self.n_idle_deaths += 1
        if self.n_idle_deaths >= self._policy.limit:
            self.to(EngineState.FAILED)
            return None
        self.to(EngineState.BACKOFF)
        if self.n_idle_deaths == 0:
            return 0.0
        delay_s = self._policy.first_delay_s * self._policy.factor ** (self.n_idle_deaths - 1)
        return min(delay_s, self._policy.max_delay_s)

    def try_again(self, given_up_for_s: float) -> bool:
        """Whether an engine that was given up is started once more. The state follows."""
        if self.state is not EngineState.FAILED or given_up_for_s < self._policy.max_delay_s:
            return False
        self.to(EngineState.STARTING)
        return True

    def note_absence(self) -> float:
        """As note_death, where another machine is not there: nobody here is to blame, so it is tried for ever."""
        self.n_deaths += 1
        self.to(EngineState.BACKOFF)
        return _LOOK_AGAIN_S


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessLimits:
    """How long an engine may be silent that owes an answer. Each limit but the first grows with the slowest step."""

    stopped_s: float = 2.0  # stopped by a signal: it computes nothing, however slow it is
    asleep_s: float = 5.0  # it uses no CPU
    busy_s: float = 120.0  # it computes
    mute_s: float = 60.0  # it sends tokens but answers no ping
    stalled_s: float = 180.0  # it answers pings, but no request moves
    slow_factor: float = 4.0  # how many of the slowest steps it may take


@dataclass(frozen=True, slots=True)
class ProcessActivity:
    """What the operating system says of the engine's process."""

    stopped: bool
    busy: bool


class Liveness:
    """Judges one engine, tick by tick. Silence is counted in ticks of ours: when this process itself was held up, the
    engine is not blamed for it. What was learnt of its slowness outlives a restart: the model is the same."""

    def __init__(self, limits: LivenessLimits, tick_s: float) -> None:
        self._limits = limits
        self._max_elapsed_s = 2 * tick_s
        self.slowest_step_s = 0.0
        self._silent_s = 0.0
        self._unanswered_s = 0.0
        self._stalled_s = 0.0

    def start(self) -> None:
        """A new process."""
        self._silent_s = self._unanswered_s = self._stalled_s = 0.0

    @property
    def silent_s(self) -> float:
        return self._silent_s

    def tick(
        self, elapsed_s: float, *, heard: bool, ping_waits: bool, moved: bool, requests_wait: bool, loads: bool = False
    ) -> None:
        """What has come since the last tick: anything at all, the answer to our ping, a step of a request, or how far
        the loading of its model is, behind which pings and requests wait."""
        elapsed_s = min(elapsed_s, self._max_elapsed_s)
        if heard:
            self.slowest_step_s = max(self.slowest_step_s, self._silent_s)
            self._silent_s = 0.0
        else:
            self._silent_s += elapsed_s
        self._unanswered_s = self._unanswered_s + elapsed_s if ping_waits and not loads else 0.0
        self._stalled_s = self._stalled_s + elapsed_s if requests_wait and not moved and not loads else 0.0

    def verdict(self, activity: ProcessActivity) -> str | None:
        """Why the engine is to be taken for dead; nothing as long as it is not."""
        limits = self._limits
        slow_s = limits.slow_factor * self.slowest_step_s
        if activity.stopped:
            if self._silent_s > limits.stopped_s:
                return f"it was stopped by a signal and has been silent for {self._silent_s:.1f} s"
            return None
        if self._silent_s > max(limits.busy_s if activity.busy else limits.asleep_s, slow_s):
            return f"it has been silent for {self._silent_s:.1f} s"
        if self._unanswered_s > max(limits.mute_s, slow_s):
            return f"it has not answered a ping for {self._unanswered_s:.1f} s"
        if self._stalled_s > max(limits.stalled_s, slow_s):
            return f"its requests have made no progress for {self._stalled_s:.1f} s"
        return None
