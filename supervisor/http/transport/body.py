"""A request's body as a value: read within limits, parsed without trusting it, checked against a model.

Whatever is wrong with it is the client's error and raised as ApiError. Knows no dialect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from aiohttp import hdrs, web
from pydantic import BaseModel, ValidationError

from luce.supervisor.http.app_context import CLIENT, REQUEST_ID, choose_model, context_of
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.settings import ServeSettings
from luce.supervisor.http.transport.connection import ClientGoneError
from luce.supervisor.http.transport.content_encoding import BadEncodingError, TooLongError, decoded, encodings_of
from luce.supervisor.http.transport.json_body import Mended, parse_object
from luce.supervisor.http.transport.server_connection import ServerConnection

_LONG_BYTES = 1 << 18  # of a body; what is shorter is parsed in the time that a thread takes to begin

_N_BYTES = web.RequestKey("n_body_bytes", int)
"""Of a request whose body was read by `read_body`."""

MENDED_SAID = web.AppKey("mended_said", set[tuple[str, Mended]])
"""What was put right in bodies, of which client, that the log has told of."""

_log = logging.getLogger("luce.http.body")

_Model = TypeVar("_Model", bound=BaseModel)
_Value = TypeVar("_Value")


async def read_body(request: web.Request, model: type[_Model], *, chooses: bool = True) -> _Model:
    """The body, checked. Its Content-Type is not looked at: clients send all sorts. If it names a model, the request is
    that model's from here on, where it is to be (`chooses`)."""
    data = await read_bytes(request, context_of(request).settings)
    request[_N_BYTES] = len(data)
    mended: set[Mended] = set()

    def parse(data: bytes) -> _Model:
        return check(parse_object(data, charset=request.charset, mended=mended), model)

    body = await parsed(data, parse)
    _say_once(request, mended)
    if chooses:
        await choose_model(request, getattr(body, "model", None))
    return body


async def parsed(data: bytes, parse: Callable[[bytes], _Value]) -> _Value:
    """What `parse` makes of a body; of a long one in a thread, so that others are served meanwhile."""
    return parse(data) if len(data) < _LONG_BYTES else await asyncio.to_thread(parse, data)


async def converted(request: web.Request, convert: Callable[[], _Value]) -> _Value:
    """What `convert` makes of the body that was read, in the same way: it may have hundreds of thousands of items."""
    return convert() if request[_N_BYTES] < _LONG_BYTES else await asyncio.to_thread(convert)


def check(raw: Mapping[str, Any], model: type[_Model]) -> _Model:
    """Raises ApiError with the place of the first mistake."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        mistakes = error.errors(include_url=False, include_context=False, include_input=False)
        places = [".".join(str(part) for part in mistake["loc"]) for mistake in mistakes]
        told = [f"{place or 'the body'}: {mistake['msg']}" for place, mistake in zip(places, mistakes, strict=True)]
        more = f" (and {len(told) - 3} more)" if len(told) > 3 else ""
        text = "; ".join(told[:3]) + more
        raise ApiError(ErrorKind.INVALID, "invalid_value", text[:2000], param=places[0] or None) from None


async def read_bytes(request: web.Request, settings: ServeSettings) -> bytes:
    """Raises ApiError if it is too long or too slow, ClientGoneError."""
    limit = settings.max_body_bytes
    if request.content_length is not None and request.content_length > limit:
        raise _too_large(limit)
    pieces = bytearray()
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            while piece := await request.content.readany():
                pieces += piece
                if len(pieces) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        text = f"the body was not complete after {settings.body_timeout_s:g} s"
        raise ApiError(ErrorKind.TIMEOUT, "slow_body", text) from None
    except ConnectionError as error:
        raise ClientGoneError("the client went while it sent its body") from error
    except web.RequestPayloadError as error:
        request.content.feed_eof()  # the server is not to look for the rest of it
        raise ApiError(ErrorKind.INVALID, "bad_body", f"the body cannot be read: {error}") from error
    return await _decoded(request, bytes(pieces), limit)


async def _decoded(request: web.Request, data: bytes, limit: int) -> bytes:
    """In a thread: a short body may be a long one once it is decoded. Raises ApiError."""
    field = ",".join(request.headers.getall(hdrs.CONTENT_ENCODING, ()))
    if not isinstance(request.protocol, ServerConnection):
        return data  # the server that the application is mounted in has decoded it
    try:
        if encodings := encodings_of(field):
            return await asyncio.to_thread(decoded, data, encodings, limit)
    except BadEncodingError as error:
        raise ApiError(ErrorKind.INVALID, "bad_encoding", str(error)) from error
    except TooLongError:
        raise _too_large(limit) from None
    return data


def _say_once(request: web.Request, mended: set[Mended]) -> None:
    """Each thing that is put right in bodies, in the log once for each client."""
    said = request.app[MENDED_SAID]
    for what in mended:
        if (entry := (request[CLIENT], what)) not in said:
            said.add(entry)
            _log.warning("%s: in the body, %s", request[REQUEST_ID], what.value)


def _too_large(limit: int) -> ApiError:
    return ApiError(ErrorKind.TOO_LARGE, "body_too_large", f"the body is larger than {limit:,} bytes")
