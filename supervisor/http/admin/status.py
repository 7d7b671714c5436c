"""`/status.json`, which the page at `/` polls: lanes, queue, speed, cache and where the pages lie.

What the page draws is worked out here. It must not know any dialect.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from aiohttp import web

from luce.supervisor.http.admin.openapi import Operation
from luce.supervisor.http.app_context import SERVED_MODELS, context_of, watched_of
from luce.supervisor.http.engine_metrics import EngineMetrics, ask_engines
from luce.supervisor.supervisor_status import EngineStatus

_FRESH_S = 0.25  # so many pages as are open, so often at most is an engine asked

Tier = dict[str, Any]

OPERATIONS = (
    Operation("get", "/status.json", "How things stand: what the page at / shows", response={"type": "object"}),
)


def add_routes(router: web.UrlDispatcher) -> None:
    board = _Board()

    async def status(request: web.Request) -> web.Response:
        return web.json_response(await board.look(request), headers={"Cache-Control": "no-store"})

    router.add_get("/status.json", status)


class _Board:
    """The last look at things, shared by all who want one at the same time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._last: dict[str, Any] = {}
        self._looked_s = -_FRESH_S

    async def look(self, request: web.Request) -> dict[str, Any]:
        async with self._lock:
            if time.monotonic() - self._looked_s >= _FRESH_S:
                self._last = await snapshot(request)
                self._looked_s = time.monotonic()
            return self._last


async def snapshot(request: web.Request) -> dict[str, Any]:
    """What the page shows, as JSON values."""
    context, watched = context_of(request), watched_of(request.app)
    models = request.app.get(SERVED_MODELS)
    engine_metrics = await ask_engines(watched)
    status = watched.status()
    return {
        "time_s": time.monotonic(),
        "model": context.model_names[0],
        "models": [] if models is None else [{"name": one.names[0], "state": one.state} for one in models.listed()],
        "ready": status.is_healthy,
        "waiting": status.n_waiting,
        "max_waiting": context.supervisor.config.max_queue,
        "tokens": status.n_tokens,
        "requests": {
            "total": status.n_requests,
            "finished": status.n_finished,
            "failed": status.n_failed,
            "cancelled": status.n_cancelled,
            "resumed": status.n_resumes,
        },
        "cache_stores": [asdict(store) for store in status.cache_stores],
        "engines": [_engine(engine, said) for engine, said in zip(status.engines, engine_metrics, strict=False)],
    }


def _engine(engine: EngineStatus, engine_metrics: EngineMetrics) -> dict[str, Any]:
    return {
        "name": engine.name,
        "state": engine.state.value,
        "load_percent": engine.load_percent,
        "deaths": engine.n_deaths,
        "last_failure": None if engine.last_failure is None else engine.last_failure.splitlines()[0],
        "lanes": engine.lanes,
        "running": [asdict(lane) for lane in engine.running],
        "slots": engine.slots,
        "slots_used": engine.n_slots_used,
        "ctx": None if engine.info is None else engine.info.ctx,
        "speculation": "none" if engine.info is None else engine.info.speculation,
        "figures": engine_metrics,
        "tiers": page_tiers(engine, engine_metrics),
    }


def page_tiers(engine: EngineStatus, engine_metrics: Mapping[str, int | float | str]) -> list[Tier]:
    """Where the pages lie, fastest first: `parts` fill `n_total` pages (None: nobody knows how many there could be)."""
    info = engine.info
    if info is None or info.page_bytes is None or not engine_metrics:
        return []

    def figure(name: str) -> int:
        value = engine_metrics.get(name, 0)
        return value if isinstance(value, int) else 0

    n_pool = (figure("pool") or info.pool) // info.page_tokens  # it may have become smaller
    # A page that several share, or that is known already, counts in both figures: running texts come first.
    n_running = min(-(-figure("cells_used") // info.page_tokens), n_pool)
    n_kept = min(max(figure("pages_resident") - n_running, 0), n_pool - n_running)
    n_host = figure("pages_host")
    # Of running texts that outgrow the pool: nowhere but in the host. A page that two of them miss counts twice.
    out = {} if info.kvflash is None else {"out": min(figure("pages_out"), n_host)}
    n_kept_in_host = n_host - out.get("out", 0)
    n_tail_pages = round(max(figure("host_bytes") - n_host * info.page_bytes, 0) / info.page_bytes)
    disk_bytes = figure("disk_bytes")
    return [
        _tier("device", n_pool, n_pool * info.page_bytes, running=n_running, kept=n_kept),
        _tier(
            "host",
            info.host_bytes // info.page_bytes,
            info.host_bytes,
            **out,
            pages=n_kept_in_host,
            tails=n_tail_pages,
        ),
        _tier("disk", None, disk_bytes, files=figure("disk_files")),
    ]


def _tier(name: str, n_total: int | None, n_bytes: int, **parts: int) -> Tier:
    return {
        "name": name,
        "n_total": n_total,
        "bytes": n_bytes,
        "parts": [{"kind": kind, "n": count} for kind, count in parts.items()],
    }
