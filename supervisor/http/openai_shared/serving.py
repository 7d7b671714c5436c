"""What OpenAI's two generating endpoints do alike: a request's surroundings, an answer taken whole, an answer that
fails while it is streamed.

Must not know bodies or chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from luce.supervisor.http.admin.endpoints import model_name
from luce.supervisor.http.answering.answer_events import AnswerFinished, ChoiceFinished, Usage
from luce.supervisor.http.answering.answer_request import AnswerRequest
from luce.supervisor.http.app_context import Answerer, AppContext
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.openai_shared.shapes import encode
from luce.supervisor.http.transport.error_bodies import openai_error


def served_name(context: AppContext, asked: str | None) -> str:
    """The model's name in an answer: what the client calls it, whatever that is."""
    if asked:
        return asked
    return context.settings.aliases[0] if context.settings.aliases else model_name(context.supervisor)


async def take_whole(answerer: Answerer, ask: AnswerRequest) -> tuple[list[ChoiceFinished], Usage]:
    """All choices in their order. Raises ApiError."""
    choices: list[ChoiceFinished] = []
    async with answerer.open(ask) as answering:
        async for event in answering.events():
            if isinstance(event, ChoiceFinished):
                choices.append(event)
            elif isinstance(event, AnswerFinished):
                return sorted(choices, key=lambda choice: choice.choice), event.usage
    raise ApiError(ErrorKind.SERVER, "internal", "the answer ended without being finished")


def error_event(error: ApiError) -> bytes:
    """The end of a stream that could not be served to its end: no finish_reason and no [DONE] go with it."""
    return b"data: %b\n\n" % encode(openai_error(error))


def json_response(value: Any) -> web.Response:
    return web.Response(body=encode(value), content_type="application/json")


def only_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What to say of several tasks that failed together: the first of our own errors, else the first."""
    flat: Sequence[BaseException] = list(_leaves(group))
    return next((error for error in flat if isinstance(error, ApiError)), flat[0])


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
