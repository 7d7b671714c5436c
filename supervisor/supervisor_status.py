"""SupervisorStatus: how a supervisor, its engines and their lanes stand, as values."""

from __future__ import annotations

from dataclasses import dataclass

from luce.supervisor.cache_store.cache_store import CacheStoreStatus
from luce.supervisor.embedding.model import EmbeddingStatus
from luce.supervisor.engine.info import EngineInfo
from luce.supervisor.engine.watchdog import EngineState


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStatus:
    """A lane at work."""

    n_prompt: int
    n_read: int  # of the prompt, as far as the engine has said so
    n_generated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    name: str
    state: EngineState
    pid: int | None
    n_deaths: int
    lanes: int
    n_running: int
    running: tuple[LaneStatus, ...]  # those that somebody waits for
    slots: int
    n_slots_used: int
    slot_bytes_used: int
    slowest_step_s: float  # the longest silence that ended well: deadlines follow it
    last_failure: str | None
    load_percent: int | None  # while it starts: how much of the model it has read
    log_tail: tuple[str, ...]
    info: EngineInfo | None  # what it said of itself when it was ready; the last one's, while there is none
    is_parked: bool = False  # it has given its memory back until the next request


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorStatus:
    engines: tuple[EngineStatus, ...]
    n_waiting: int
    n_requests: int
    n_finished: int
    n_failed: int
    n_cancelled: int
    n_resumes: int
    n_tokens: int
    n_moves: int = 0  # of texts' memory from one engine to another
    n_failed_moves: int = 0
    n_moved_tokens: int = 0
    n_moved_bytes: int = 0
    embeddings: tuple[EmbeddingStatus, ...] = ()  # models that give vectors or rank documents
    cache_stores: tuple[CacheStoreStatus, ...] = ()  # one for each model, where there is one

    @property
    def is_healthy(self) -> bool:
        """Some engine is ready, or will be once it is asked."""
        return any(engine.state in {EngineState.READY, EngineState.AWAY} for engine in self.engines)
