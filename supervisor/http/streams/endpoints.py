"""GET and DELETE /v1/stream, POST /v1/streams/lookup: answers are taken up again, ended and looked for, as with
llama-server. Only those of the same API key are there.
"""

from __future__ import annotations

from aiohttp import web
from pydantic import BaseModel, ConfigDict, StrictStr

from luce.supervisor.http.admin.openapi import COUNT, NAME, NUMBER, TEXT, Operation, listed, record
from luce.supervisor.http.app_context import CLIENT
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.streams.resumable_answer import STREAM_SESSIONS, follow
from luce.supervisor.http.streams.stream_session import OffsetLostError, StreamSession
from luce.supervisor.http.transport.body import read_body

MAX_OFFSET_DIGITS = 15
MAX_LOOKED_UP = 1000


class LookupBody(BaseModel):
    """Names of conversations, as `X-Conversation-Id` had them."""

    model_config = ConfigDict(extra="allow")

    conversation_ids: list[StrictStr] = []


_FOUND = record(
    {
        "conversation_id": TEXT,
        "is_done": {"type": "boolean"},
        "total_bytes": COUNT,
        "started_at": NUMBER,
        "completed_at": NUMBER,
    }
)

OPERATIONS = (
    Operation("get", "/v1/stream", "Go on with a streamed answer", query={"conv_id": NAME}),
    Operation(
        "delete", "/v1/stream", "End a streamed answer, and forget it", query={"conv_id": NAME}, has_answer=False
    ),
    Operation("post", "/v1/streams/lookup", "Which streamed answers are kept", LookupBody, listed(_FOUND)),
)


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get("/v1/stream", get_stream, allow_head=False)
    router.add_delete("/v1/stream", delete_stream)
    router.add_post("/v1/streams/lookup", look_up)


async def get_stream(request: web.Request) -> web.StreamResponse:
    session = request.app[STREAM_SESSIONS].find(request[CLIENT], _name(request))
    if session is None:
        raise ApiError(ErrorKind.NOT_FOUND, "stream_not_found", "Stream not found or expired", param="conv_id")
    try:
        begin = _begin(request, session)
    except OffsetLostError:
        text = (
            f"Stream offset lost: from byte {session.n_dropped} up to {session.n_bytes} it is kept. Ask for the answer"
            " anew"
        )
        raise ApiError(ErrorKind.INVALID, "offset_lost", text, param="from") from None
    return await follow(request, session, begin)


async def delete_stream(request: web.Request) -> web.Response:
    request.app[STREAM_SESSIONS].drop(request[CLIENT], _name(request))
    return web.Response(status=204)


async def look_up(request: web.Request) -> web.Response:
    body = await read_body(request, LookupBody, chooses=False)
    sessions = request.app[STREAM_SESSIONS]
    if len(body.conversation_ids) > MAX_LOOKED_UP:
        text = f"at most {MAX_LOOKED_UP} conversation_ids, got {len(body.conversation_ids)}"
        raise ApiError(ErrorKind.INVALID, "too_many_ids", text, param="conversation_ids")
    found = [session for name in body.conversation_ids if name for session in sessions.named(request[CLIENT], name)]
    return web.json_response(
        [
            {
                "conversation_id": session.name,
                "is_done": session.ended_s is not None,
                "total_bytes": session.n_bytes,
                "started_at": int(session.began_s),
                "completed_at": int(session.ended_s or 0),
            }
            for session in found
        ]
    )


def _name(request: web.Request) -> str:
    name = request.query.get("conv_id", "")
    if not name:
        raise ApiError(ErrorKind.INVALID, "missing_conv_id", "Missing conversation id: ?conv_id=", param="conv_id")
    return name


def _begin(request: web.Request, session: StreamSession) -> int:
    """Behind the last event that the client has, or the byte that it names. Raises OffsetLostError."""
    last = request.headers.get("Last-Event-ID")
    given = request.query.get("from", "0") if last is None else last
    if not given.isascii() or not given.isdigit() or len(given) > MAX_OFFSET_DIGITS:
        raise ApiError(ErrorKind.INVALID, "invalid_offset", f"Invalid 'from' offset: {given[:40]!r}", param="from")
    begin = int(given) if last is None else session.behind(int(given))
    if not session.n_dropped <= begin <= session.n_bytes:
        raise OffsetLostError
    return begin
