"""AppContext: what every handler needs, in one value; and what a dialect may ask of that which answers.

The one thing that dialects and the rest of this package have in common.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from aiohttp import web

from luce.supervisor.http.answer_defaults import ModelDefaults
from luce.supervisor.http.answering.answer_events import AnswerEvent
from luce.supervisor.http.prompts.answer_request import AnswerRequest
from luce.supervisor.http.settings import ServeSettings

if TYPE_CHECKING:
    from luce.supervisor.http.metrics import Metrics
    from luce.supervisor.model_backend import ModelBackend
    from luce.supervisor.supervisor_status import SupervisorStatus
    from luce.supervisor.text import TextModel


class FastPath(Protocol):
    """Where an answer's events can go without anybody's waiting: from the callback of the loop that brought the tokens,
    which costs a quarter less CPU a token than waking the task that reads the answer."""

    def is_clear(self) -> bool:
        """All that came before has been taken."""

    def show(self, events: Sequence[AnswerEvent]) -> None:
        """REQUIRES: it is clear."""


class Answering(Protocol):
    """An answer that is being made: its prompt is known and fits, and it has its place in the queue."""

    @property
    def n_prompt(self) -> int: ...

    @property
    def n_generated(self) -> int:
        """Tokens of all choices so far."""

    def events(self, fast_path: FastPath | None = None) -> AsyncIterator[AnswerEvent]:
        """AnswerFinished last. Raises ApiError where the answer cannot be served to its end.

        Events go to the fast path, if there is one, while it is clear, and come from here otherwise: each one way or
        the other, in their order. AnswerFinished and what comes with it come from here always."""


class Answerer(Protocol):
    def open(self, answer_request: AnswerRequest) -> AbstractAsyncContextManager[Answering]:
        """Entering it raises ApiError where the request cannot be served: nothing has been sent to the client by then.
        Leaving it early cancels what is still being computed."""

    async def count_tokens(self, answer_request: AnswerRequest) -> int:
        """Length of the prompt in tokens. Raises ApiError."""

    async def prompt_text(self, answer_request: AnswerRequest) -> str:
        """What the template makes of a conversation, with earlier answers as they were given. Raises ApiError, or
        TextError."""


@dataclass(frozen=True, slots=True)
class AppContext:
    supervisor: ModelBackend
    text: TextModel
    settings: ServeSettings
    answerer: Answerer
    metrics: Metrics
    defaults: ModelDefaults
    hold: Callable[[], AbstractAsyncContextManager[None]]
    """Around work that is no answer: the server waits for it when it stops. Raises ApiError while it stops."""
    created: int
    """When the model's file was made, by the epoch."""

    takes_requests: Callable[[], bool] = lambda: True
    """Whether it will for a while: not once the server is to stop."""

    @property
    def n_ctx(self) -> int | None:
        """Tokens that a text may have; before the model has been loaded, what it was asked to have; None: unknown."""
        return self.supervisor.config.ctx if self.supervisor.n_ctx is None else self.supervisor.n_ctx

    @property
    def model_names(self) -> list[str]:
        """Under which the model is listed: its aliases, or its file's name; and its profiles."""
        return list(dict.fromkeys([*(self.settings.aliases or [self.supervisor.model.stem]), *self.settings.profiles]))

    def served_name(self, asked: str | None) -> str:
        """The model's name in an answer: what the client calls it, whatever that is."""
        return asked or self.model_names[0]


def file_time(file: Path) -> int:
    """When it was made, by the epoch; 0: it is not there."""
    return int(file.stat().st_mtime) if file.is_file() else 0


class Watched(Protocol):
    """A supervisor, or all of a server's: how things stand."""

    def status(self) -> SupervisorStatus: ...

    async def engine_status(self, timeout_s: float = 1.0) -> list[dict[str, str]]: ...


class Models(Watched, Protocol):
    """The models of a server that has several."""

    async def context(self, asked: str | None) -> AppContext:
        """Of the model with this name or alias, the first one's where none is named. Raises ApiError
        (`model_not_found`)."""

    def listed(self) -> Sequence[ListedModel]: ...


@dataclass(frozen=True, slots=True)
class ListedModel:
    """One of several, as /v1/models shows it."""

    names: Sequence[str]
    supervisor: ModelBackend
    n_ctx: int | None
    """Tokens, as far as is known: before the model has been loaded, what it was asked to have."""
    created: int
    """When its file was made, by the epoch."""
    state: str
    """here, coming, leaving or away"""


APP_CONTEXT = web.AppKey("app_context", AppContext)
"""Of the only model, or of the first one."""
SERVED_MODELS = web.AppKey("served_models", Models)
"""Of a server that has several."""
_CHOSEN = web.RequestKey("chosen_context", AppContext)
CLIENT = web.RequestKey("client", str)
"""Of a request: whom what is kept of it belongs to (`ApiKey.client`); empty without keys. Set by middleware."""
REQUEST_ID = web.RequestKey("request_id", str)
"""Of a request: its id in headers and log. Set by middleware."""
STREAMS = web.RequestKey("streams", bool)
"""Of a request: whether its answer is a stream that has begun. Set by EventStream."""


async def choose_model(request: web.Request, asked: object) -> None:
    """From here on `context_of` the request is that of the model that it asks for. Raises ApiError."""
    if (models := request.app.get(SERVED_MODELS)) is not None:
        request[_CHOSEN] = await models.context(asked if isinstance(asked, str) else None)


def context_of(request: web.Request) -> AppContext:
    """Of the model that the request has chosen, or of the first one."""
    chosen: AppContext = request.get(_CHOSEN, request.app[APP_CONTEXT])
    return chosen


def watched_of(app: web.Application) -> Watched:
    return app[SERVED_MODELS] if SERVED_MODELS in app else app[APP_CONTEXT].supervisor
