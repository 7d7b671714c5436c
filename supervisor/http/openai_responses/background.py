"""Responses that are made while nobody waits (`background`): looked at, streamed from any event on, cancelled.

Each is a stream of its own name; once it has ended, whatever its end, it is kept like any other response. It is given
up, as all such streams are, when nobody has looked at it for `stream_kept_s`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from luce.supervisor.http.app_context import APP_CONTEXT, CLIENT
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.openai_responses.events import ResponseWriter
from luce.supervisor.http.openai_shared.fields import refusal
from luce.supervisor.http.prompts.answer_request import AnswerRequest
from luce.supervisor.http.streams.resumable_answer import STREAM_SESSIONS, answer_source, begin_session, follow
from luce.supervisor.http.streams.stream_session import OffsetLostError, StreamSession
from luce.supervisor.http.transport.connection import while_connected

MAX_DIGITS = 12  # of an event's number


@dataclass(frozen=True, slots=True)
class _Running:
    session: StreamSession
    writer: ResponseWriter


class BackgroundResponses:
    def __init__(self) -> None:
        self._running: dict[tuple[str, str], _Running] = {}  # by client and id

    async def begin(
        self,
        request: web.Request,
        name: str,
        asked: AnswerRequest,
        writer: ResponseWriter,
        *,
        streams: bool,
        on_end: Callable[[], None],
    ) -> web.StreamResponse:
        """What is wrong with the request is told at once. `on_end` keeps what has come of it."""
        key = (request[CLIENT], name)

        def end() -> None:
            self._running.pop(key, None)
            on_end()

        source = answer_source(request.app[APP_CONTEXT].answerer, asked, writer)
        session, opened = begin_session(request, name, source, end)
        await while_connected(request, asyncio.shield(opened))
        if session.ended_s is None:
            self._running[key] = _Running(session, writer)
        if streams:
            return await follow(request, session, 0)
        return web.Response(body=writer.so_far(), content_type="application/json")

    def look(self, client: str, name: str) -> bytes | None:
        """How far it is; None: it is not at work here."""
        running = self._running.get((client, name))
        if running is None:
            return None
        running.session.look()
        return running.writer.so_far()

    async def stream(self, request: web.Request, name: str) -> web.StreamResponse:
        """From behind the event `starting_after`, or from the first one on. Raises ApiError."""
        session = request.app[STREAM_SESSIONS].find(request[CLIENT], name)
        if session is None:
            text = "only a response that was made in the background can be streamed again, and for a while"
            raise refusal("stream", text, "unsupported_value")
        after = request.query.get("starting_after")
        if after is not None and not (after.isascii() and after.isdigit() and len(after) <= MAX_DIGITS):
            raise refusal("starting_after", f"starting_after={after[:40]}: it is the number of an event")
        try:
            place = session.start() if after is None else session.behind(session.place_of(_numbered(int(after))))
        except OffsetLostError:
            text = "the stream has no such event, or does not keep it any more: ask for the response itself"
            raise ApiError(ErrorKind.INVALID, "event_lost", text, param="starting_after") from None
        return await follow(request, session, place)

    async def cancel(self, client: str, name: str) -> bytes | None:
        """What it is once it has ended; None: it is not at work here."""
        running = self._running.get((client, name))
        if running is None or running.session.task is None:
            return None
        running.session.task.cancel()
        await asyncio.wait([running.session.task])
        return running.writer.ended()


def _numbered(number: int) -> bytes:
    """What an event of this number has, and no text in an event: there its quotes are escaped."""
    return b'"sequence_number":%d,' % number
