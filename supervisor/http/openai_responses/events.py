"""The Responses API's answer to one request: AnswerEvents in, whole server-sent events (or one object) out. Pure.

Every event has its number. What stays the same in the response object is encoded once; items are once, when they end.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from luce.supervisor.http.answering.answer_events import (
    AnswerEvent,
    AnswerFinished,
    ChoiceFinished,
    ContentPiece,
    FinishReason,
    Progress,
    PromptLogprobs,
    ReasoningPiece,
    ToolCallPiece,
    Usage,
)
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.openai_responses.output import (
    Event,
    MessageItem,
    OutputItem,
    ReasoningItem,
    call_item,
    fields,
)
from luce.supervisor.http.openai_responses.tools import Tools
from luce.supervisor.http.openai_shared.shapes import TokenClock, timing_fields, usage_fields

COMPLETED, INCOMPLETE, FAILED, IN_PROGRESS = "completed", "incomplete", "failed", "in_progress"
CANCELLED = "cancelled"

_FAILURE_CODES = {
    ErrorKind.OVERLOADED: "rate_limit_exceeded",
    ErrorKind.INVALID: "invalid_prompt",
    ErrorKind.CONTEXT_FULL: "context_length_exceeded",  # not among OpenAI's for this place; Codex compacts on it
}


def new_response_id() -> str:
    return f"resp_{secrets.token_hex(24)}"


@dataclass(frozen=True, slots=True)
class ResponseForm:
    """What of the response object does not change: what was asked, said back."""

    echoed: Mapping[str, Any]
    tools: Tools = field(default_factory=Tools)
    with_logprobs: bool = False
    packs_reasoning: bool = False
    with_progress: bool = False
    """llama-server's `return_progress`: in_progress events say how much of the prompt has been read."""
    with_timings: bool = False
    """llama-server's `timings_per_token`."""
    id: str = field(default_factory=new_response_id)
    created_at: int = field(default_factory=lambda: int(time.time()))


class ResponseWriter:
    def __init__(self, form: ResponseForm) -> None:
        self._form = form
        self._head = fields(id=form.id, object="response", created_at=form.created_at, **form.echoed)
        self._n_events = 0
        self._ended: list[dict[str, Any]] = []
        self._item: OutputItem | None = None
        self._kind: object = None  # what the open item takes: a class of pieces, or a call's number
        self._reason = FinishReason.STOP
        self._n_cached: int | None = None
        self._clock = TokenClock()
        self.final = b""
        """The whole response, once it has been completed: what those get who do not stream."""
        self._failure = b""

    def first(self, n_prompt: int = 0) -> bytes:
        self._clock.n_prompt = n_prompt
        waiting = self._response(IN_PROGRESS)
        return self._events([("response.created", waiting), ("response.in_progress", waiting)])

    def keep_alive(self) -> bytes:
        """A typed event: Codex counts no others."""
        if self.final:
            return b""
        return self._events([("response.in_progress", self._response(IN_PROGRESS))])

    def feed(self, event: AnswerEvent) -> bytes:
        match event:
            case ContentPiece() | ReasoningPiece() | ToolCallPiece():
                return self._events(self._piece(event))
            case Progress():
                return self._progress(event)
            case ChoiceFinished():
                self._reason = event.reason
                return self._events(self._end_item(is_last=True))
            case AnswerFinished():
                return self._complete(event.usage)
            case PromptLogprobs():
                return b""  # the API has no place for them

    def fail(self, error: ApiError) -> bytes:
        """What has come stays in it, as incomplete."""
        if self._item is not None:
            self._ended.append(self._item.snapshot(INCOMPLETE))
            self._item = None
        said = {"code": _FAILURE_CODES.get(error.kind, "server_error"), "message": error.text}
        body = self._response(FAILED, error=said)
        self._failure = _alone(body)
        return self._events([("response.failed", body)])

    def so_far(self) -> bytes:
        """The whole response as it stands, whether it is complete or not."""
        return self.final or self._failure or _alone(self._response(IN_PROGRESS))

    def ended(self) -> bytes:
        """The same, where nothing more will come."""
        return self.final or self._failure or _alone(self._response(CANCELLED))

    @property
    def output(self) -> list[dict[str, Any]]:
        return self._ended

    def _piece(self, event: ContentPiece | ReasoningPiece | ToolCallPiece) -> list[Event]:
        is_call = isinstance(event, ToolCallPiece)
        kind: object = event.index if isinstance(event, ToolCallPiece) else type(event)
        text = event.arguments if isinstance(event, ToolCallPiece) else event.text
        logprobs = event.logprobs if isinstance(event, ContentPiece) else ()
        events: list[Event] = []
        if self._item is None or kind != self._kind:
            if not (text or is_call or (self._form.with_logprobs and logprobs)):
                return []
            events += self._end_item()
            self._item, self._kind = self._new_item(event), kind
            events += self._item.open()
        pieces = list(self._item.piece(text, logprobs))
        if self._form.with_timings and pieces:
            timings = fields(timings=self._clock.token())
            pieces = [(name, f"{body},{timings}") for name, body in pieces]
        return events + pieces

    def _new_item(self, event: ContentPiece | ReasoningPiece | ToolCallPiece) -> OutputItem:
        index = len(self._ended)
        match event:
            case ContentPiece():
                return MessageItem(index, with_logprobs=self._form.with_logprobs)
            case ReasoningPiece():
                return ReasoningItem(index, is_packed=self._form.packs_reasoning)
            case ToolCallPiece():
                return call_item(index, self._form.tools.called(event.name), event.id)

    def _end_item(self, *, is_last: bool = False) -> list[Event]:
        events: list[Event] = []
        if self._item is None:
            if not is_last or self._ended:
                return events
            self._item = MessageItem(0, with_logprobs=self._form.with_logprobs)  # an answer has at least one item
            events += self._item.open()
        is_cut_off = is_last and self._reason is FinishReason.LENGTH
        status = INCOMPLETE if is_cut_off or self._item.is_broken_off else COMPLETED
        events += self._item.close(status)
        self._ended.append(self._item.snapshot(status))
        self._item = None
        return events

    def _progress(self, event: Progress) -> bytes:
        if not self._form.with_progress:
            return b""
        self._n_cached = event.n_done if self._n_cached is None else self._n_cached
        progress = {
            "total": event.n_total,
            "cache": self._n_cached,
            "processed": event.n_done,
            "time_ms": self._clock.elapsed_ms(),
        }
        body = f"{self._response(IN_PROGRESS)},{fields(prompt_progress=progress)}"
        return self._events([("response.in_progress", body)])

    def _complete(self, usage: Usage) -> bytes:
        is_cut = self._reason is FinishReason.LENGTH
        kind = "response.incomplete" if is_cut else "response.completed"
        body = self._response(
            INCOMPLETE if is_cut else COMPLETED,
            incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
            completed_at=None if is_cut else int(time.time()),
            usage=response_usage(usage),
            **usage.told_of_schemas(),
        )
        self.final = _alone(body)
        return self._events([(kind, f"{body},{fields(timings=timing_fields(usage))}")])

    def _response(self, status: str, **values: object) -> str:
        changing: dict[str, object] = {
            "status": status,
            "error": None,
            "incomplete_details": None,
            "completed_at": None,
            "output": self._ended,
            "usage": None,
        }
        return f'"response":{{{self._head},{fields(**(changing | values))}}}'

    def _events(self, events: Iterable[Event]) -> bytes:
        """One block of bytes for all that comes at once."""
        lines: list[str] = []
        for name, body in events:
            lines.append(f'event: {name}\ndata: {{"type":"{name}","sequence_number":{self._n_events},{body}}}\n\n')
            self._n_events += 1
        return "".join(lines).encode("ascii")


def _alone(body: str) -> bytes:
    return body.removeprefix('"response":').encode("ascii")


def response_usage(usage: Usage) -> dict[str, Any]:
    """`luce` is ours: why the cache did not serve more of the prompt, and where the time went."""
    return {
        "input_tokens": usage.n_prompt,
        "input_tokens_details": {
            "cached_tokens": usage.n_cached,
            "cache_write_tokens": usage.n_prompt - usage.n_cached,
        },
        "output_tokens": usage.n_generated,
        "output_tokens_details": {"reasoning_tokens": usage.n_reasoning},
        "total_tokens": usage.n_prompt + usage.n_generated,
        "luce": usage_fields(usage)["luce"],
    }
