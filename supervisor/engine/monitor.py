"""EngineMonitor: keeps one engine running: starts it, watches it, ends it, starts it again.

Carries out what `watchdog` decides. It must not know requests: whoever listens is told when there is an engine, when it
has died and when there will be none any more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from luce.supervisor.config import DaemonConfig, EngineConfig, SupervisorConfig
from luce.supervisor.engine.activity import Activity
from luce.supervisor.engine.client import EngineClient
from luce.supervisor.engine.generation import EXIT_TRY_LATER, DeathCause, EngineDied
from luce.supervisor.engine.info import EngineInfo
from luce.supervisor.engine.process import EngineProcess, StartError, StopDeadlines
from luce.supervisor.engine.watchdog import (
    EngineState,
    Lifecycle,
    Liveness,
    LivenessLimits,
    RestartPolicy,
)

_LAST_WRITES_S = 120.0
"""For an engine that ends in order to write what is not on disk yet: the host cache's bytes at a slow disk's speed."""


class MonitorListener(Protocol):
    def engine_ready(self, monitor: EngineMonitor, client: EngineClient, info: EngineInfo) -> None: ...

    def engine_died(self, monitor: EngineMonitor, death: EngineDied) -> None:
        """Called before the requests of its client fail."""

    def engine_failed(self, monitor: EngineMonitor) -> None:
        """It is given up, until `try_again` has it started."""

    def engine_has_requests(self, monitor: EngineMonitor) -> bool:
        """Whether some wait for an answer of this engine: it is watched closely then."""

    def engine_is_late(self, monitor: EngineMonitor, now_s: float) -> str | None:
        """What a request of this engine has waited for in vain."""


class EngineMonitor:
    """One engine at a time. `run` is its life; all else looks at it."""

    def __init__(
        self,
        name: str,
        binary: Path,
        config: SupervisorConfig,
        engine: EngineConfig,
        *,
        on_log: Callable[[str], None] | None = None,
    ) -> None:
        self.name = name
        self.daemon_config: DaemonConfig = config.daemon_config(engine)
        self._binary = binary
        self._config = config
        self._engine = engine
        self._on_log = on_log
        self._last_line = ""
        self._lifecycle = Lifecycle(
            RestartPolicy(
                first_delay_s=config.restart_delay_s,
                max_delay_s=config.max_restart_delay_s,
                limit=config.restart_limit,
            )
        )
        self._liveness = Liveness(
            LivenessLimits(
                stopped_s=config.stopped_timeout_s,
                # One that waits for other machines uses no CPU of this one.
                asleep_s=config.asleep_timeout_s if self.daemon_config.rpc is None else config.busy_timeout_s,
                busy_s=config.busy_timeout_s,
                stalled_s=config.stalled_timeout_s,
                slow_factor=config.slow_factor,
            ),
            config.ping_interval_s,
        )
        self._process: EngineProcess | None = None
        self._client: EngineClient | None = None
        self._has_work = asyncio.Event()
        self._did_work = self._had_requests = False
        self._may_start = asyncio.Event()
        self._may_start.set()
        self._is_to_end = False
        self._ended = asyncio.Event()
        self._is_tried_again = asyncio.Event()
        self._given_up_s = 0.0
        self.last_failure: StartError | EngineDied | None = None
        self.next_start: asyncio.Future[StartError | None] = asyncio.get_running_loop().create_future()
        """Done when the first start has succeeded or failed; a new one after each `allow`."""

    @property
    def state(self) -> EngineState:
        return self._lifecycle.state

    @property
    def n_deaths(self) -> int:
        return self._lifecycle.n_deaths

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        process = self._process
        return process.pid if process is not None and process.exit_code is None else None

    @property
    def slowest_step_s(self) -> float:
        return self._liveness.slowest_step_s

    def log_tail(self) -> list[str]:
        """The last lines of the running engine's log."""
        return [] if self._process is None else self._process.log_tail()

    @property
    def load_percent(self) -> int | None:
        """How much of the model an engine that is starting has read; None: it does not say."""
        if self._lifecycle.state is not EngineState.STARTING:
            return None
        return None if self._process is None else self._process.load_percent

    async def engine_status(self, timeout_s: float) -> dict[str, str]:
        """The engine's own figures; none while there is no engine that answers."""
        if self._client is None:
            return {}
        try:
            return dict((await self._client.status(timeout_s)).fields)
        except (EngineDied, TimeoutError):
            return {}

    def wake(self) -> None:
        """There are requests: watch closely from now on."""
        self._has_work.set()

    def forbid(self) -> None:
        """No engine is started from now on; the one that runs goes on until it dies."""
        self._may_start.clear()

    def allow(self) -> None:
        """There is to be an engine, started if there is none."""
        if self.next_start.done():
            self.next_start = asyncio.get_running_loop().create_future()
        self._lifecycle.n_idle_deaths = 0
        self._may_start.set()

    def try_again(self) -> bool:
        """For a request that finds this engine given up. Whether it is started once more."""
        is_started = self._lifecycle.try_again(time.monotonic() - self._given_up_s)
        if is_started:
            self._is_tried_again.set()
        return is_started

    async def end(self) -> None:
        """The engine ends in order: what it is to write to disk it writes. None is started until `allow`. REQUIRES: no
        request runs on it, and `run` runs."""
        self.forbid()
        if self._process is None:
            return
        self._ended.clear()
        self._is_to_end = True
        self._has_work.set()
        await self._ended.wait()

    async def run(self, listener: MonitorListener) -> None:
        """Until this is cancelled: then the engine is stopped first."""
        try:
            while True:
                await self._wait_until_allowed()
                self._did_work = self._had_requests = False
                await self._live(listener)
                if self._is_to_end:
                    self._is_to_end = False
                    self._ended.set()
                    continue
                delay_s = self._note_end()
                if delay_s is None:
                    await self._be_given_up(listener)
                else:
                    await asyncio.sleep(delay_s)
        except BaseException:
            self._lifecycle.to(EngineState.STOPPING)
            raise
        finally:
            self._ended.set()  # whoever waits for its end

    async def _be_given_up(self, listener: MonitorListener) -> None:
        """Until it is tried again."""
        self._given_up_s = time.monotonic()
        self._is_tried_again.clear()
        again_s = self._config.max_restart_delay_s
        self._log(f"{self.name} is given up; a request that comes after {again_s:g} s or more has it started again")
        listener.engine_failed(self)
        await self._is_tried_again.wait()

    def _note_end(self) -> float | None:
        """Seconds until the next start; None: it is given up."""
        failure = self.last_failure
        is_elsewhere = (
            failure.exit_code == EXIT_TRY_LATER
            if isinstance(failure, StartError)
            else failure is not None and failure.cause is DeathCause.WORKER_LOST
        )
        if is_elsewhere:
            return self._lifecycle.note_absence()
        return self._lifecycle.note_death(did_work=self._did_work, had_requests=self._had_requests)

    async def _wait_until_allowed(self) -> None:
        has_ended = self._lifecycle.state is EngineState.READY
        if has_ended or not self._may_start.is_set():
            self._lifecycle.to(EngineState.AWAY)
            await self._may_start.wait()
        if self._lifecycle.state is not EngineState.STARTING:
            self._lifecycle.to(EngineState.STARTING)

    async def _live(self, listener: MonitorListener) -> None:
        """One process, from its start to its end."""
        try:
            async with await EngineProcess.spawn(
                self._binary, self.daemon_config, on_log=self._log, environment=self._engine.environment
            ) as process:
                self._process = process
                info = await self._wait_ready(process)
                n_pool, shortage = await self._serve(process, info, listener)
                if self._is_to_end:
                    await process.stop(StopDeadlines(quit_s=_LAST_WRITES_S))
                await process.kill()  # it is of no use any more, whatever it still does
            if n_pool is not None:
                info = replace(info, kvflash=n_pool)
                self.daemon_config = replace(self.daemon_config, kvflash=n_pool)
            self._adapt_pool(info, shortage)
        except StartError as error:
            self.last_failure = error
            self._note_start(error)
        finally:
            self._process = None

    def _adapt_pool(self, info: EngineInfo, shortage: str | None) -> None:
        """The next engine leaves more for computing, if this one died for want of memory."""
        n_tokens = info.smaller_pool if shortage is not None else None
        if n_tokens is None:
            return
        self.daemon_config = replace(self.daemon_config, kvflash=n_tokens)
        self._log(
            f"{self.name} ran out of memory ({shortage}): it starts again with a pool of {n_tokens} tokens, not "
            f"{info.kvflash} (--kv-offload)"
        )

    def _log(self, line: str) -> None:
        """Once: an engine that waits for another machine says so each second."""
        if self._on_log is not None and line != self._last_line:
            self._on_log(line)
        self._last_line = line

    async def _wait_ready(self, process: EngineProcess) -> EngineInfo:
        """Raises StartError. A load may take long, but not for a process that does nothing at all."""
        config = self._config
        ready = asyncio.ensure_future(process.wait_ready(config.start_timeout_s))
        activity = Activity(process.pid)
        stopped_s = asleep_s = 0.0
        why = None
        try:
            while why is None and not (await asyncio.wait([ready], timeout=config.ping_interval_s))[0]:
                seen = activity.look()
                stopped_s = stopped_s + config.ping_interval_s if seen.stopped else 0.0
                asleep_s = 0.0 if seen.busy else asleep_s + config.ping_interval_s
                if stopped_s > config.stopped_timeout_s:
                    why = "was stopped by a signal before it was ready"
                elif asleep_s > config.busy_timeout_s:
                    why = f"did not get ready, and has done nothing for {asleep_s:.0f} s"
            if why is None:
                return EngineInfo.of(ready.result())
        finally:
            ready.cancel()
            await asyncio.wait([ready])
        await process.kill()  # it would not hear a polite request
        raise StartError(f"luced {why}")

    async def _serve(
        self, process: EngineProcess, info: EngineInfo, listener: MonitorListener
    ) -> tuple[int | None, str | None]:
        """Until the engine's end. Returns what its pool had become, if that was not what it started with, and what it
        said if it died because memory ran out."""
        died = asyncio.Event()

        def on_death(death: EngineDied) -> None:
            self.last_failure = death
            self._had_requests = listener.engine_has_requests(self)
            died.set()
            self._has_work.set()
            if death.cause is not DeathCause.CLOSED:
                self._log(f"{self.name}: {str(death).splitlines()[0]}")
            listener.engine_died(self, death)

        client = EngineClient(process, n_vocab=info.n_vocab, on_death=on_death)
        async with client:
            self._client = client
            self._lifecycle.to(EngineState.READY)
            self._note_start(None)
            listener.engine_ready(self, client, info)
            try:
                await self._watch(process, client, listener, died)
            finally:
                self._did_work = client.n_moved > 0
                self._client = None
        return client.n_pool, client.shortage

    async def _watch(
        self, process: EngineProcess, client: EngineClient, listener: MonitorListener, died: asyncio.Event
    ) -> None:
        """Returns when the engine has died, or is taken for dead."""
        liveness, config = self._liveness, self._config
        liveness.start()
        pong: asyncio.Future[None] | None = None
        activity = Activity(process.pid)
        n_heard, n_moved, then_s = client.n_heard, client.n_moved, time.monotonic()
        n_reports = process.n_load_reports
        pinged_s = then_s
        while not died.is_set():
            has_requests = listener.engine_has_requests(self)
            idle = not has_requests and pong is None
            if idle:
                self._has_work.clear()
                await _wait(self._has_work, config.idle_ping_interval_s)
            else:
                await _wait(died, config.ping_interval_s)
            now_s = time.monotonic()
            answered = pong is None or pong.done()
            moved = client.n_moved != n_moved
            loads = process.n_load_reports != n_reports
            liveness.tick(
                now_s - then_s if pong is not None else 0.0,
                heard=client.n_heard != n_heard or loads,
                ping_waits=not answered,
                moved=moved,
                requests_wait=has_requests,
                loads=loads,
            )
            n_heard, n_moved, n_reports, then_s = client.n_heard, client.n_moved, process.n_load_reports, now_s
            if client.death is not None or self._is_to_end:
                return
            is_doubtful = liveness.silent_s > 0 or not answered or (has_requests and not moved)
            why = liveness.verdict(activity.look()) if is_doubtful else None
            if why is not None:
                cause = DeathCause.STOPPED if activity.stopped else DeathCause.HUNG
                client.declare_dead(why, cause)
                return
            late = listener.engine_is_late(self, now_s)
            if late is not None:
                client.declare_dead(late, DeathCause.BROKE_PROTOCOL)
                return
            if answered:
                pong = None
                # Tokens are a sign of life themselves, and each look at the engine takes time from what computes them.
                is_due = not moved or now_s - pinged_s >= config.idle_ping_interval_s
                if idle or (has_requests and is_due):
                    pinged_s = now_s
                    with suppress(EngineDied):  # which `died` knows of
                        pong = client.post_ping()

    def _note_start(self, error: StartError | None) -> None:
        if not self.next_start.done():
            self.next_start.set_result(error)


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
