"""What both endpoints do around their work: is there a model, is the client still there, does the server stop; and what
an input that is too long is called.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from aiohttp import web

from luce.supervisor.embedding.model import EmbeddingModel
from luce.supervisor.http.app_context import context_of
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.transport.connection import while_connected
from luce.supervisor.requests import PromptTooLongError, RequestRefusedError

_Result = TypeVar("_Result")


def required(find: Callable[[], EmbeddingModel], what: str, flag: str) -> EmbeddingModel:
    """Raises ApiError with the option that is missing."""
    try:
        return find()
    except RequestRefusedError as error:
        text = f"this server has no {what}: start it with {flag} FILE.gguf"
        code = f"no_{what.replace(' ', '_')}"
        raise ApiError(ErrorKind.UNSUPPORTED, code, text) from error


async def compute(
    request: web.Request, work: Coroutine[Any, Any, _Result], param: str, *, has_several: bool
) -> _Result:
    """What `work` gives. It is cancelled when the client goes. Raises ApiError where it does not fit the model.
    `has_several`: the field is a list of texts, of which the error names the one that is too long."""
    try:
        async with context_of(request).hold():
            return await while_connected(request, work)
    except PromptTooLongError as error:
        place = f"{param}[{error.number}]" if has_several else param
        text = f"'{place}': {error.told}. Shorten or split it: nothing is cut silently."
        raise ApiError(ErrorKind.INVALID, "context_length_exceeded", text, param=param) from error
    finally:
        work.close()
