"""EngineReplica: a Serve deployment with a Supervisor, and the door by which ingresses reach it.

Serve starts, watches and drains it; requests come by the door, past Serve's own queues. It must not know text.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

from ray.util import get_node_ip_address

from luce.ray.prefix_digest import PrefixDigest
from luce.ray.ray_metrics import REPLICA_GAUGES, Gauges
from luce.ray.raylet_watch import raylet_watch
from luce.ray.replica_door import ReplicaDoor
from luce.supervisor.config import SupervisorConfig
from luce.supervisor.engine.watchdog import EngineState
from luce.supervisor.prefix_cache.held_pages import HeldPages
from luce.supervisor.prefix_cache.page_names import PAGE_TOKENS
from luce.supervisor.supervisor import Supervisor

_LOG = logging.getLogger("ray.serve")
_LOOK_S = 1.0


class EngineReplica:
    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: SupervisorConfig, *, stride: int, drain_s: float
    ) -> None:
        self._drain_s = drain_s
        self._stride_pages = stride // PAGE_TOKENS
        self._held = HeldPages()
        self._n_names = 0
        """In the last digest."""
        supervisor = Supervisor(config, on_log=lambda line: _LOG.info("%s", line))
        self._door = ReplicaDoor(supervisor)
        self._metadata: dict[str, Any] = {}
        self._n_digests = 0
        self._to_end = asyncio.Event()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live(ready), name="luce replica")
        try:
            await ready
        except asyncio.CancelledError:
            self._life.cancel()
            raise

    async def _live(self, ready: asyncio.Future[None]) -> None:
        """One task enters and leaves what has to be left by whom it was entered."""
        try:
            async with self._door.supervisor as supervisor:
                self._held = supervisor.watch_pages()
                host = get_node_ip_address()
                port = await self._door.open(host)
                info = next(engine.info for engine in supervisor.status().engines if engine.info is not None)
                if info.page_tokens != PAGE_TOKENS:
                    _LOG.warning("pages of %d tokens: routers cannot find prefixes here", info.page_tokens)
                self._metadata = {
                    "host": host,
                    "port": port,
                    "secret": self._door.secret.hex(),
                    "identity": info.identity,
                    "lanes": sum(engine.lanes for engine in supervisor.status().engines),
                }
                reporting = asyncio.create_task(self._report())
                ready.set_result(None)
                try:
                    await self._to_end.wait()
                    await self._door.drain(self._drain_s)
                    await supervisor.presence.leave(ends=True, drain_s=0)
                finally:
                    reporting.cancel()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)
        finally:
            self._door.close()  # last: by then disk and cache store have what others may go on from

    async def _report(self) -> None:
        gauges = Gauges(REPLICA_GAUGES)
        raylet_is_gone = raylet_watch()
        while not raylet_is_gone():
            status = self._door.supervisor.status()
            gauges.set(
                waiting_tokens=self._n_unread(),
                open_requests=self._n_open(),
                held_names=self._n_names,
                read_token_seconds=self._door.supervisor.prices.read_s(1) or 0.0,
                tokens=status.n_tokens,
                resumes=status.n_resumes,
            )
            await asyncio.sleep(_LOOK_S)
        _LOG.error("the raylet is gone: this replica drains and ends")  # and gives its device back
        self._to_end.set()
        self._life.add_done_callback(lambda _: os._exit(1))

    # What Serve asks

    def check_health(self) -> None:
        if self._life.done():
            raise RuntimeError("the supervisor has ended")
        engines = self._door.supervisor.status().engines
        if all(engine.state is EngineState.FAILED for engine in engines):
            raise RuntimeError(f"every engine was given up: {engines[0].last_failure}")

    def record_replica_metadata(self) -> dict[str, Any]:
        return self._metadata

    def record_routing_stats(self) -> dict[str, Any]:
        """What it remembers, by names that say nothing of the texts; what it has to do; what reading costs here."""
        self._n_digests += 1
        names = self._held.names(every=self._stride_pages)
        self._n_names = len(names)
        prices = self._door.supervisor.prices
        visits = [visit for visit in self._door.visits if visit.requests]
        return {
            "number": self._n_digests,
            "digest": PrefixDigest.of(names).to_text(),
            "open": {
                visit.name: (len(visit.requests), sum(served.n_unread for served in visit.requests.values()))
                for visit in visits
            },
            "read_s": prices.read_s(1),
            "answer_s": prices.service_s() or 1.0,
        }

    def record_autoscaling_stats(self) -> dict[str, float]:
        return {
            "waiting_tokens": float(self._n_unread()),
            "open_requests": float(self._n_open()),
            "lanes": float(self._metadata["lanes"]),
        }

    async def __del__(self) -> None:
        """Serve drains it: what runs ends here or goes on elsewhere, and what it remembers goes to disk, if there is a
        cache on one."""
        self._to_end.set()
        await asyncio.wait([self._life])

    def _n_open(self) -> int:
        return sum(len(visit.requests) for visit in self._door.visits)

    def _n_unread(self) -> int:
        return sum(served.n_unread for visit in self._door.visits for served in visit.requests.values())
