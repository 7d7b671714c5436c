"""AnswerWriter: what a dialect has to say of a streamed answer, for those who send it."""

from __future__ import annotations

from typing import Protocol

from luce.supervisor.http.answering.answer_events import AnswerEvent
from luce.supervisor.http.errors import ApiError


class AnswerWriter(Protocol):
    """A dialect's words for one streamed answer. Each method gives the bytes of whole server-sent events, or none."""

    def first(self, n_prompt: int) -> bytes:
        """What goes out before the prompt is read: clients and proxies wait for it."""

    def keep_alive(self) -> bytes: ...

    def feed(self, event: AnswerEvent) -> bytes: ...

    def fail(self, error: ApiError) -> bytes:
        """The end of a stream that could not be served to its end."""
