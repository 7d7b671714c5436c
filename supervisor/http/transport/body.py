"""A request's body as a value: read within limits, parsed without trusting it, checked against a model.

Whatever is wrong with it is the client's error and raised as ApiError. Knows no dialect.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from aiohttp import hdrs, web
from pydantic import BaseModel, ValidationError

from luce.supervisor.http.app_context import CLIENT, choose_model, context_of
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.settings import ServeSettings
from luce.supervisor.http.transport.connection import ClientGoneError
from luce.supervisor.http.transport.known_bodies import KnownBodies, name_of_messages

MAX_DEPTH = 100  # of arrays and objects in each other
MAX_VALUES = 2_000_000  # a body of 32 MiB could hold eight times as many, each an object of ours
MAX_MESSAGES = 100_000  # as with Anthropic: a conversation of so many fits no context, and takes seconds to read
MAX_DIGITS = 20  # of a whole number: all of 64 bits

_ENCODINGS = ("identity", "gzip", "deflate", "br", "zstd")  # aiohttp says which of them are installed

_LONG_BYTES = 1 << 18  # of a body; what is shorter is parsed in the time that a thread takes to begin

_N_BYTES = web.RequestKey("n_body_bytes", int)
"""Of a request whose body was read by `read_body`."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_LONG_NUMBER = re.compile(rf"[0-9]{{{MAX_DIGITS + 1}}}")

KNOWN_BODIES = web.AppKey("known_bodies", KnownBodies)

_Model = TypeVar("_Model", bound=BaseModel)
_Value = TypeVar("_Value")


async def read_body(request: web.Request, model: type[_Model], *, chooses: bool = True) -> _Model:
    """The body, checked. Its Content-Type is not looked at: clients send all sorts. If it names a model, the request is
    that model's from here on, where it is to be (`chooses`)."""
    data = await read_bytes(request, context_of(request).settings)
    request[_N_BYTES] = len(data)
    known = (request.app[KNOWN_BODIES], f"{model.__name__} {request[CLIENT]}")
    body = await parsed(data, lambda data: check(parse_object(data, *known), model))
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
    except RecursionError:
        _refuse("the body is nested too deeply")


async def read_bytes(request: web.Request, settings: ServeSettings) -> bytes:
    """Raises ApiError if it is too long or too slow, ClientGoneError."""
    limit = settings.max_body_bytes
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower()
    if encoding not in _ENCODINGS:
        text = f"Content-Encoding {encoding[:40]!r} is not known: send the body as it is"
        raise ApiError(ErrorKind.INVALID, "bad_encoding", text)
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
        raise ApiError(ErrorKind.INVALID, "bad_encoding", f"the body cannot be decoded: {error}") from error
    return bytes(pieces)


def parse_object(data: bytes, known: KnownBodies | None = None, owner: str = "") -> dict[str, Any]:
    """A JSON object of text, numbers and the like that everything behind can express. `known`: earlier bodies of
    `owner`'s. Raises ApiError."""
    if not data.strip():
        _refuse("the body is empty: it has to be a JSON object")
    if len(data) > MAX_VALUES and data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_VALUES:
        raise ApiError(ErrorKind.TOO_LARGE, "too_many_values", f"the body has more than {MAX_VALUES:,} values")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        _refuse(f"the body is not UTF-8: byte {error.start}")
    value = _parse(text) if known is None else known.parsed(text, owner, _parse)
    if (name := name_of_messages(value)) is not None and len(value[name]) > MAX_MESSAGES:
        told = f"{name} has {len(value[name]):,} items: {MAX_MESSAGES:,} is the most"
        raise ApiError(ErrorKind.INVALID, "too_many_messages", told, param=name)
    return value


def _parse(text: str) -> dict[str, Any]:
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_no_constant,
            parse_float=_float,
            parse_int=_int if _has_long_number(text) else None,
        )
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        _refuse("a text in the body has half of a surrogate pair (\\ud800 to \\udfff by itself)")
    except RecursionError:
        _refuse("the body is nested too deeply")
    except ValueError as error:
        _refuse(f"the body is not JSON: {error}")
    if not isinstance(value, dict):
        _refuse("the body has to be a JSON object")
    _check_depth(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, n in counts.items() if n > 1)
        raise ValueError(f"an object has {twice[:100]!r} twice")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _float(text: str) -> float:
    value = float(text)
    if value in {float("inf"), float("-inf")}:
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _has_long_number(text: str) -> bool:
    """Piece by piece: no other thread runs while a pattern is looked for."""
    begins = range(0, len(text), _LONG_BYTES)
    return any(_LONG_NUMBER.search(text, at, at + _LONG_BYTES + MAX_DIGITS) for at in begins)


def _int(text: str) -> int:
    if len(text.lstrip("-")) > MAX_DIGITS:
        raise ValueError(f"the number {text[:40]} is too large")
    return int(text)


def _check_depth(value: dict[str, Any]) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
        if not level:
            return
    _refuse(f"the body is nested too deeply: more than {MAX_DEPTH} levels")


def _too_large(limit: int) -> ApiError:
    return ApiError(ErrorKind.TOO_LARGE, "body_too_large", f"the body is larger than {limit:,} bytes")


def _refuse(text: str) -> NoReturn:
    raise ApiError(ErrorKind.INVALID, "invalid_json", text)
