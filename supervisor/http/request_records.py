"""RequestRecords: the last requests that computed something, in a ring: what each took, and why it was not less.

The record of the request at work goes with its context, so that whoever answers it can add to it. Nothing of what was
said is kept. It must not know who looks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from luce.supervisor.http.answering.answer_events import Usage

N_RECORDS = 500
_MAX_AGENT = 60


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    api: str
    id: str = ""
    client: str = ""
    """The name of its key; empty without keys."""
    agent: str = ""
    """What the client calls itself."""
    began_s: float = field(default_factory=time.time)
    status: int = 0
    seconds: float | None = None
    """None: it is at work."""
    first_token_s: float | None = None
    usage: Usage | None = None

    def as_json(self) -> dict[str, Any]:
        usage = self.usage
        shown: dict[str, Any] = {
            "id": self.id,
            "api": self.api,
            "client": self.client,
            "agent": self.agent,
            "time": round(self.began_s, 3),
            "status": self.status,
            "seconds": _rounded(self.seconds),
            "first_token_s": _rounded(self.first_token_s),
            "prompt_tokens": None,
        }
        if usage is not None:
            shown |= {
                "prompt_tokens": usage.n_prompt,
                "cached_tokens": usage.n_cached,
                "generated_tokens": usage.n_generated,
                **usage.extension(),
            }
        return shown


class RequestRecords:
    def __init__(self) -> None:
        self._ended: deque[RequestRecord] = deque(maxlen=N_RECORDS)
        self._running: dict[int, RequestRecord] = {}
        self._first_tokens_s: deque[float] = deque(maxlen=N_RECORDS)
        self._n_prompt = 0
        self._n_cached = 0

    @contextmanager
    def noted(self, record: RequestRecord) -> Iterator[None]:
        """Around the request: who answers it finds the record with `current_record`."""
        began_s = time.monotonic()
        self._running[id(record)] = record
        token = _CURRENT.set(record)
        try:
            yield
        finally:
            _CURRENT.reset(token)
            del self._running[id(record)]
            record.seconds = time.monotonic() - began_s
            self._ended.append(record)
            if record.first_token_s is not None:
                self._first_tokens_s.append(record.first_token_s)
            if record.usage is not None:
                self._n_prompt += record.usage.n_prompt
                self._n_cached += record.usage.n_cached

    def newest_first(self) -> Iterator[RequestRecord]:
        """Those at work, then those that have ended."""
        yield from reversed(self._running.values())
        yield from reversed(self._ended)

    def take_first_tokens_s(self) -> list[float]:
        """Times to first tokens since the last call."""
        taken = list(self._first_tokens_s)
        self._first_tokens_s.clear()
        return taken

    def take_prompts(self) -> tuple[int, int]:
        """Tokens of the prompts of requests that have ended since the last call, and of these the cached ones."""
        taken = self._n_prompt, self._n_cached
        self._n_prompt = self._n_cached = 0
        return taken


_CURRENT: ContextVar[RequestRecord | None] = ContextVar("REQUEST_RECORD", default=None)


def current_record() -> RequestRecord | None:
    """Of the request that is answered in this context."""
    return _CURRENT.get()


def agent_of(user_agent: str) -> str:
    """A client's name and version, of what it says of itself; browsers all say the same first."""
    first = user_agent.split(" ", 1)[0][:_MAX_AGENT]
    if first.startswith("Mozilla/"):
        return "browser"
    return first if first.isprintable() else ""


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
