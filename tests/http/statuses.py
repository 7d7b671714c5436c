"""How an engine stands, made up: for what only shows it."""

from __future__ import annotations

from typing import Any

from luce.supervisor import EngineState, EngineStatus
from luce.supervisor.engine.info import EngineInfo


def engine_status(*, kvflash: int | None = None, **changes: Any) -> EngineStatus:
    info = EngineInfo(
        model="m", identity="i", lanes=2, ctx=100, n_vocab=10, pool=640, slots=4, host_bytes=10_000, page_tokens=64,
        page_bytes=100, tail_bytes=50, reuses=True, kvflash=kvflash,
    )  # fmt: skip
    values: dict[str, Any] = {
        "name": "engine 0", "state": EngineState.READY, "pid": 1, "n_deaths": 0, "lanes": 2, "n_running": 0,
        "running": (), "slots": 4, "n_slots_used": 0, "slot_bytes_used": 0, "slowest_step_s": 0.0,
        "last_failure": None, "load_percent": None, "log_tail": (), "info": info,
    }  # fmt: skip
    return EngineStatus(**(values | changes))
