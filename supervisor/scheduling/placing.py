"""Placing: which engine a request starts on, now or later. Where the one that holds its text has no lane free, the
request waits for it, or its text's memory is moved to another one, as a file that one engine writes and the other reads
(`router.cheapest` by prices measured here). Whatever goes wrong with a move, the text is read anew.

Acts in the event loop's callbacks, but for the moves, each in a task of its own. It must not know queues.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from luce.protocol import GenerateOk, LocalProtocolError
from luce.supervisor.config import SupervisorConfig
from luce.supervisor.engine.generation import EngineDied, EngineError
from luce.supervisor.scheduling.engine_handle import EngineHandle
from luce.supervisor.scheduling.engine_texts import KnownText
from luce.supervisor.scheduling.in_flight_request import Attempt, InFlightRequest
from luce.supervisor.scheduling.prices import EnginePrices, first_move_price
from luce.supervisor.scheduling.router import Candidate, RecentSessions, Way, cheapest, choose
from luce.supervisor.scheduling.totals import Totals

_LOG = logging.getLogger("luce.scheduling")

_LATE, _LATE_S = 10.0, 10.0
"""A move may take so many times what it was to take, and so many seconds, before it is given up."""


@dataclass(slots=True)
class _Pending:
    """A request that has not started although a lane is free."""

    since_s: float
    timer: asyncio.TimerHandle | None = None
    move: asyncio.Task[None] | None = None
    has_moved: bool = False
    """Its text, or that was tried: once is enough."""


class Placing:
    def __init__(
        self, handles: Sequence[EngineHandle], config: SupervisorConfig, totals: Totals, on_change: Callable[[], None]
    ) -> None:
        """`on_change`: a request that was to wait may start now."""
        self._handles = handles
        self._config = config
        self._totals = totals
        self._on_change = on_change
        self._sessions = RecentSessions()
        self._moving = first_move_price()
        self._pending: dict[InFlightRequest, _Pending] = {}
        self._moves: set[asyncio.Task[None]] = set()

    def choose(self, in_flight: InFlightRequest, n_waiting: int) -> EngineHandle | None:
        """The engine that it starts on now; None: it waits. `n_waiting`: requests in the queue."""
        session, held = in_flight.request.session, {handle: handle.n_held(in_flight) for handle in self._handles}
        candidates = [
            Candidate(
                taker=handle,
                n_held=n_held,
                n_open=len(handle.attempts),
                n_lanes=handle.n_lanes,
                is_home=self._sessions.is_home(session, handle),
            )
            for handle, n_held in held.items()
            if handle.n_free > 0
        ]
        handle = choose(candidates)
        if handle is None or handle.is_reading_what(in_flight):
            return None  # another is reading the same: it waits rather than read it twice
        home = max(held, key=held.__getitem__)
        n_more = held[home] - held[handle]
        if home.is_here and n_more >= max(self._config.share_min_tokens, 1) and in_flight.request.reuse:
            return self._where_home_is_busy(in_flight, home, handle, n_more, n_waiting)
        return handle

    def wait_s(self, n_before: int) -> float:
        """Of one that so many wait before, while all lanes are taken."""
        prices = EnginePrices.merged(handle.prices for handle in self._handles)
        return prices.wait_s(sum(handle.n_lanes for handle in self._handles), n_before)

    def note_start(self, in_flight: InFlightRequest, handle: EngineHandle) -> None:
        self.forget(in_flight)
        self._sessions.note(in_flight.request.session, handle)

    def note_end(self, attempt: Attempt, final: GenerateOk) -> None:
        """REQUIRES: its engine's handle still has it."""
        handle = next((handle for handle in self._handles if attempt in handle.attempts), None)
        if handle is None or attempt.in_flight is None:
            return
        n_read = final.n_prompt if final.n_read is None else final.n_read
        handle.prices.note_read(n_read - final.n_reused, final.prefill_s)
        handle.prices.largest_slice = attempt.largest_slice or handle.prices.largest_slice
        if final.tier == "disk" and attempt.first_token_s is not None:
            handle.prices.note_restored(final.n_reused, attempt.first_token_s - attempt.started_s - final.prefill_s)
        if attempt.in_flight.started_s is not None:
            handle.prices.note_service(time.monotonic() - attempt.in_flight.started_s)

    def forget(self, in_flight: InFlightRequest) -> None:
        """It has started, or never will. A move under way goes on: its text may be asked for again."""
        pending = self._pending.pop(in_flight, None)
        if pending is not None and pending.timer is not None:
            pending.timer.cancel()

    def close(self) -> None:
        for task in self._moves:
            task.cancel()
        for in_flight in list(self._pending):
            self.forget(in_flight)

    def _where_home_is_busy(
        self, in_flight: InFlightRequest, home: EngineHandle, handle: EngineHandle, n_more: int, n_waiting: int
    ) -> EngineHandle | None:
        """`home` holds so many tokens more of its text than `handle`, which is free."""
        pending = self._pending.get(in_flight)
        if pending is not None and pending.move is not None and not pending.move.done():
            return None
        read_s = handle.prices.read_s(n_more)
        if read_s is None:
            return handle
        loop = asyncio.get_running_loop()
        if pending is None:
            pending = self._pending[in_flight] = _Pending(loop.time())
        known = None if pending.has_moved else home.known_text(in_flight)
        if known is not None and 2 * known.n_tokens < n_more:
            known = None
        move_s = None if known is None else self._moving.of(known.n_bytes)
        wait_s = home.prices.wait_s(home.n_lanes, n_waiting / len(self._handles))
        waited_s = loop.time() - pending.since_s
        way = cheapest(wait_s=wait_s, move_s=move_s, read_s=read_s, waited_s=waited_s)
        if way is Way.READ:
            return handle
        if way is Way.MOVE:
            assert known is not None
            assert move_s is not None
            pending.has_moved = True
            pending.move = loop.create_task(self._move(known, home, handle, move_s), name="a text moves")
            self._moves.add(pending.move)
            pending.move.add_done_callback(self._moves.discard)
        elif pending.timer is None or pending.timer.when() <= loop.time():
            other_s = read_s if move_s is None else min(read_s, move_s)
            pending.timer = loop.call_later(other_s - waited_s, self._on_change)
        return None

    async def _move(self, known: KnownText, home: EngineHandle, to: EngineHandle, expected_s: float) -> None:
        began_s = time.monotonic()
        path: Path | None = None
        limit_s = _LATE * expected_s + _LATE_S
        try:
            fd, name = tempfile.mkstemp(prefix="luce-text-", suffix=".snapshot")
            os.close(fd)
            path = Path(name)
            async with asyncio.timeout(limit_s):
                saved = await home.save_known(known, name)
                n_tokens = await to.load_text(name)
        except (EngineError, EngineDied, LocalProtocolError, OSError, TimeoutError) as error:
            self._totals.n_failed_moves += 1
            why = str(error) or f"it has taken more than {limit_s:.0f} s"
            _LOG.warning("moving a text from %s failed, %s reads it again: %s", home.monitor.name, to.monitor.name, why)
        else:
            self._moving.note(saved.n_bytes, time.monotonic() - began_s)
            self._totals.n_moves += 1
            self._totals.n_moved_tokens += n_tokens
            self._totals.n_moved_bytes += saved.n_bytes
        finally:
            if path is not None:
                path.unlink(missing_ok=True)
            self._on_change()
