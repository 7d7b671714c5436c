"""What the page asks for beside /status.json: the last hour, the last requests; and the noting of both.

Must not know how answers are made.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator
from contextlib import suppress

from aiohttp import web
from aiohttp.typedefs import Handler

from luce.supervisor.http.admin.openapi import COUNT, Operation, listed, record
from luce.supervisor.http.app_context import REQUEST_ID, context_of, watched_of
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.keys.key_ring import KEY_RING, key_name, window_of
from luce.supervisor.http.request_records import RequestRecord, RequestRecords, agent_of
from luce.supervisor.http.transport.middleware import CLIENT_GONE_STATUS, api_name
from luce.supervisor.http.window.client_lines import client_lines
from luce.supervisor.http.window.history import COLUMNS, INTERVAL_S, History

_URL = re.compile(r"https?://[A-Za-z0-9._~:\[\]/%-]{1,200}")
_NOT_SHOWN = frozenset({"other", "count_tokens"})
_COLUMN = listed({"type": ["number", "null"]})
_HISTORY = record({"interval_s": {"type": "number"}, **dict.fromkeys(COLUMNS, _COLUMN)})

OPERATIONS = (
    Operation("get", "/history.json", "The last hour, a sample every few seconds", response=_HISTORY),
    Operation(
        "get",
        "/requests.json",
        "The last requests, newest first: what each took, and why its prompt was not all in memory",
        response=record({"requests": listed({"type": "object"}), "n_kept": COUNT}),
    ),
    Operation(
        "get",
        "/clients.json",
        "The lines that clients take so that they talk to this server",
        response=record({"clients": {"type": "object"}, "needs_key": {"type": "boolean"}}),
    ),
)

_HISTORY_KEY = web.AppKey("history", History)
REQUEST_RECORDS = web.AppKey("request_records", RequestRecords)


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get("/history.json", get_history)
    router.add_get("/requests.json", get_requests)
    router.add_get("/clients.json", get_clients)


def set_up(app: web.Application) -> None:
    """What is noted from now on, as long as the application runs."""
    app[_HISTORY_KEY] = History()
    app[REQUEST_RECORDS] = RequestRecords()

    async def note_history(app: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(app[_HISTORY_KEY].run(watched_of(app), app[REQUEST_RECORDS]))
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    app.cleanup_ctx.append(note_history)


async def get_history(request: web.Request) -> web.Response:
    """`?after=TIME`: only what is younger."""
    samples = request.app[_HISTORY_KEY].after(_time_in(request))
    return web.json_response({"interval_s": INTERVAL_S, **samples}, headers={"Cache-Control": "no-store"})


async def get_requests(request: web.Request) -> web.Response:
    shown = [record.as_json() for record in request.app[REQUEST_RECORDS].newest_first()]
    return web.json_response({"requests": shown, "n_kept": len(shown)}, headers={"Cache-Control": "no-store"})


async def get_clients(request: web.Request) -> web.Response:
    """`?url=`: where the server is for the one who asks, which a proxy before it may have changed."""
    context = context_of(request)
    url = request.query.get("url", f"{request.scheme}://{request.host}")
    if not _URL.fullmatch(url):
        raise ApiError(ErrorKind.INVALID, "invalid_value", f"url={url[:80]!r}: it must be an http address")
    needs_key = bool(request.app[KEY_RING])
    n_ctx = window_of(request, context.n_ctx)
    lines = client_lines(url, context.model_names[0], "YOUR_KEY" if needs_key else None, n_ctx=n_ctx)
    return web.json_response({"clients": lines, "needs_key": needs_key})


@web.middleware
async def note_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The outermost: a request that computes something leaves a record, also if it fails."""
    api = api_name(request)
    if api in _NOT_SHOWN or request.method != "POST":
        return await handler(request)
    noted = RequestRecord(api=api, agent=agent_of(request.headers.get("User-Agent", "")))
    with request.app[REQUEST_RECORDS].noted(noted):
        noted.status = CLIENT_GONE_STATUS
        try:
            response = await handler(request)
            noted.status = response.status
        finally:
            noted.id = request.get(REQUEST_ID, "")
            noted.client = key_name(request)
    return response


def _time_in(request: web.Request) -> float:
    text = request.query.get("after", "0")
    try:
        time_s = float(text)
    except ValueError:
        time_s = math.nan
    if not math.isfinite(time_s):
        raise ApiError(ErrorKind.INVALID, "invalid_value", f"after={text[:40]!r}: it must be a time in seconds")
    return time_s
