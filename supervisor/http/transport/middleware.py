"""What every request passes on its way in and out: its id, its entry in log and metrics, and what its errors look like.

An error is told in the shape of the API that the request speaks; what nobody foresaw is logged and told as a 500
without its text. Knows no dialect but for its paths.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import secrets
import time
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from luce.supervisor.http.answering.shutdown_gate import STREAM_ERRORS
from luce.supervisor.http.app_context import CLIENT, REQUEST_ID, STREAMS, choose_model, context_of
from luce.supervisor.http.errors import ApiError, ErrorKind, api_error
from luce.supervisor.http.keys.key_ring import key_name
from luce.supervisor.http.transport.connection import ClientGoneError
from luce.supervisor.http.transport.error_bodies import anthropic_error, openai_error, speaks_anthropic
from luce.supervisor.http.transport.served_paths import nearest_path
from luce.supervisor.requests import RequestError
from luce.supervisor.text import TextError

CLIENT_GONE_STATUS = 499  # nobody reads it but the log
_APIS = (
    ("/chat/completions", "chat_completions"),
    ("/completions", "completions"),
    ("/completion", "completions"),
    ("/infill", "completions"),
    ("/embeddings", "embeddings"),
    ("/embedding", "embeddings"),
    ("/rerank", "rerank"),
    ("/reranking", "rerank"),
    ("/compress", "compress"),
    ("/responses", "responses"),
    ("/messages/count_tokens", "count_tokens"),
    ("/input_tokens", "count_tokens"),
    ("/messages", "messages"),
)
OTHER_API = "other"
"""What is no answer to a prompt."""
_BODY_IS_LEFT = frozenset({"bad_body", "slow_body", "body_too_large"})  # nothing can follow on this connection
_POLLED = ("/health", "/livez", "/metrics", "/readyz", "/status.json")  # by machines, all day long
_ERROR_CODE = web.RequestKey("error_code", str)
_RETRY_AFTER_S = {ErrorKind.OVERLOADED: 1.0, ErrorKind.UNAVAILABLE: 10.0}
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")

_access_log = logging.getLogger("luce.http.access")
_log = logging.getLogger("luce.http.app")


@web.middleware
async def account_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The outermost: gives the request its id and ends it exactly once in log and metrics."""
    given = request.headers.get("x-request-id", "")
    request[REQUEST_ID] = given if _REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
    request[CLIENT] = ""
    metrics = context_of(request).metrics
    api = api_name(request)
    stream_errors: list[ApiError] = []
    STREAM_ERRORS.set(stream_errors)  # each request has a context of its own
    outcome, status = "failed", 0
    began_s = time.monotonic()
    metrics.request_started(api)
    try:
        response = await _answer(request, handler)
        status = response.status
        outcome = _outcome(status) if not stream_errors else _outcome(stream_errors[-1].kind.status)
    except asyncio.CancelledError:
        outcome, status = "gone", CLIENT_GONE_STATUS
        raise
    except web.HTTPException as error:  # a redirection
        outcome, status = "ok", error.status
        raise
    else:
        return response
    finally:
        metrics.request_ended(api, outcome)
        if name := key_name(request):
            metrics.key_request(name, outcome)
        level = logging.DEBUG if request.rel_url.raw_path.endswith(_POLLED) else logging.INFO
        _access_log.log(
            level,
            "%s%s %s %s %d %s%s %.3f s",
            request[REQUEST_ID],
            f" {name}" if name else "",
            request.method,
            request.rel_url.raw_path[:200],
            status,
            outcome,
            f" {request[_ERROR_CODE]}" if _ERROR_CODE in request else "",
            time.monotonic() - began_s,
        )


@web.middleware
async def choose_by_query(request: web.Request, handler: Handler) -> web.StreamResponse:
    """`?model=`: where there is no body to name it."""
    if (asked := request.query.get("model")) is not None:
        await choose_model(request, asked)
    return await handler(request)


def api_name(request: web.Request) -> str:
    """The API for metrics: one of a few words, whatever the client asks for."""
    resource = request.match_info.route.resource
    path = "" if resource is None else resource.canonical
    return next((api for end, api in _APIS if path.endswith(end)), OTHER_API)


def error_response(request: web.Request, error: ApiError) -> web.Response:
    request[_ERROR_CODE] = error.code
    body: dict[str, Any]
    if speaks_anthropic(request.path, request.headers):
        body = anthropic_error(error, request[REQUEST_ID])
    else:
        body = openai_error(error, path=request.path)
    response = web.json_response(body, status=error.kind.status)
    retry_after_s = error.retry_after_s if error.retry_after_s is not None else _RETRY_AFTER_S.get(error.kind)
    if retry_after_s is not None:
        response.headers["Retry-After"] = str(max(math.ceil(retry_after_s), 1))
    if error.code in _BODY_IS_LEFT:
        response.force_close()
    if error.kind is ErrorKind.UNAUTHENTICATED:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return _told(request, error)
    except (RequestError, TextError) as error:
        return _told(request, api_error(error))
    except ClientGoneError:
        return web.Response(status=CLIENT_GONE_STATUS)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        response = error_response(request, _http_error(request, error))
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
    except Exception:  # noqa: BLE001  the last place where a request can be answered
        if request.transport is None or request.transport.is_closing():
            _log.debug("%s: failed after its client had left", request[REQUEST_ID], exc_info=True)
            return web.Response(status=CLIENT_GONE_STATUS)
        _log.exception("%s: %s failed", request[REQUEST_ID], request.rel_url.raw_path[:200])
        text = f"internal server error: see the server's log for {request[REQUEST_ID]}"
        return _told(request, ApiError(ErrorKind.SERVER, "internal", text))


def _told(request: web.Request, error: ApiError) -> web.StreamResponse:
    if error.kind.status >= 500:
        _log.warning("%s: %s: %s", request[REQUEST_ID], error.code, error.text)
    if STREAMS in request:
        # Its stream has begun and was cut off: there is nowhere to say more.
        _log.warning("%s: ended its stream with %s", request[REQUEST_ID], error.code)
    return error_response(request, error)


def _http_error(request: web.Request, error: web.HTTPException) -> ApiError:
    where = f"{request.method} {request.rel_url.raw_path[:200]}"
    match error.status:
        case 404:
            nearest = nearest_path(request.rel_url.raw_path, request.app.router)
            hint = f"; the nearest path is {nearest}" if nearest is not None else ""
            return ApiError(ErrorKind.NOT_FOUND, "unknown_url", f"there is no {where} here{hint}")
        case 405:
            allowed = error.headers.get("Allow", "")
            return ApiError(ErrorKind.METHOD, "method_not_allowed", f"there is no {where} here, but {allowed}")
        case 413:
            return ApiError(ErrorKind.TOO_LARGE, "body_too_large", error.text or "the body is too large")
        case status if status < 500:
            return ApiError(ErrorKind.INVALID, "bad_request", error.text or error.reason)
        case _:
            return ApiError(ErrorKind.SERVER, "internal", error.reason)


def _outcome(status: int) -> str:
    if status == CLIENT_GONE_STATUS:
        return "gone"
    if status == 429:
        return "overloaded"
    if status >= 500:
        return "failed"
    return "refused" if status >= 400 else "ok"
