"""What OpenAI's two generating endpoints do alike with a request: its Ask's surroundings, an answer taken whole, an
answer that fails while it is streamed.

Must not know bodies or chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from luce.supervisor.http.admin import model_name
from luce.supervisor.http.answer import AnswerFinished, ChoiceFinished, Usage
from luce.supervisor.http.ask import Ask
from luce.supervisor.http.error_shapes import openai_error
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.openai_shapes import encode
from luce.supervisor.http.site import Answerer, Site


def served_name(site: Site, asked: str | None) -> str:
    """The model's name in an answer: what the client calls it, whatever that is."""
    if asked:
        return asked
    return site.settings.aliases[0] if site.settings.aliases else model_name(site.supervisor)


async def take_whole(answerer: Answerer, ask: Ask) -> tuple[list[ChoiceFinished], Usage]:
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
