"""What OpenAI's endpoints do alike around an answer: the model's name, JSON as a response, errors of several tasks.

Must not know bodies or chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from luce.supervisor.http.admin.endpoints import model_name
from luce.supervisor.http.app_context import AppContext
from luce.supervisor.http.errors import ApiError
from luce.supervisor.http.openai_shared.shapes import encode


def served_name(context: AppContext, asked: str | None) -> str:
    """The model's name in an answer: what the client calls it, whatever that is."""
    if asked:
        return asked
    return context.settings.aliases[0] if context.settings.aliases else model_name(context.supervisor)


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
