"""A streamed answer that goes on when its client's connection breaks: written into a session by a task of its own, and
read from there by the request that began it, and by those that take it up again.

A request asks for this with `X-Conversation-Id`, as llama-server has it. It must not know what the events say.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from luce.supervisor.http.app_context import APP_CONTEXT, CLIENT, Answerer, context_of
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.prompts.answer_request import AnswerRequest
from luce.supervisor.http.streams.stream_session import OffsetLostError, StreamSession, StreamSessions
from luce.supervisor.http.transport.answer_writer import AnswerWriter
from luce.supervisor.http.transport.connection import ClientGoneError, connection_watch, while_connected
from luce.supervisor.http.transport.sse import EventStream

CONVERSATION_ID = "X-Conversation-Id"
MAX_NAME_LENGTH = 256
_PIECE_BYTES = 1 << 16

STREAM_SESSIONS = web.AppKey("stream_sessions", StreamSessions)


@dataclass(frozen=True, slots=True)
class EventSource:
    """A streamed answer in a dialect's words, whoever reads it."""

    run: Callable[[Callable[[bytes], None]], Awaitable[None]]
    """Hands over whole events up to the last one. Raises ApiError before the first."""
    keep_alive: Callable[[], bytes]


def answer_source(answerer: Answerer, asked: AnswerRequest, writer: AnswerWriter) -> EventSource:
    async def run(write: Callable[[bytes], None]) -> None:
        async with answerer.open(asked) as answering:
            write(writer.first(answering.n_prompt))
            try:
                async for event in answering.events():
                    write(writer.feed(event))
            except ApiError as error:
                write(writer.fail(error))

    return EventSource(run, writer.keep_alive)


async def resumable_answer(
    request: web.Request, name: str, source: EventSource, on_end: Callable[[], None] | None = None
) -> web.StreamResponse:
    """As stream_answer. `on_end` is called once an answer that has begun has ended, whoever has read it."""
    if not 0 < len(name) <= MAX_NAME_LENGTH:
        text = f"{CONVERSATION_ID} has 1 to {MAX_NAME_LENGTH} characters"
        raise ApiError(ErrorKind.INVALID, "bad_conversation_id", text)
    session, opened = begin_session(request, name, source, on_end)
    await while_connected(request, asyncio.shield(opened))
    return await follow(request, session, 0)


def begin_session(
    request: web.Request, name: str, source: EventSource, on_end: Callable[[], None] | None = None
) -> tuple[StreamSession, asyncio.Future[None]]:
    """The session, and what is done once its first event is there; an ApiError comes from it if there will be none."""
    sessions = request.app[STREAM_SESSIONS]
    session = StreamSession(request[CLIENT], name, source.keep_alive)
    opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    opened.add_done_callback(_heard)
    if not sessions:
        connection_watch().add(_Clock(sessions))
    sessions.add(session)

    def take(events: bytes) -> None:
        session.write(events)
        if not opened.done():
            opened.set_result(None)

    async def write() -> None:
        try:
            await source.run(take)
        except ApiError as error:
            if not opened.done():
                opened.set_exception(error)
            sessions.forget(session)
        finally:
            session.end()
            if opened.done() and opened.exception() is None and on_end is not None:
                on_end()
            if not opened.done():
                text = "the answer was ended before it began: its stream was deleted, or another one has its name"
                opened.set_exception(ApiError(ErrorKind.INVALID, "cancelled", text))

    session.task = asyncio.create_task(write(), name=f"stream {name}")
    return session, opened


async def follow(request: web.Request, session: StreamSession, begin: int) -> web.StreamResponse:
    """The session's events from there on, to its end."""
    with session.reader():
        # Signs of life are in the session: clients count its bytes.
        async with EventStream(request, keep_alive=bytes, settings=context_of(request).settings) as stream:
            try:
                while piece := await session.read(begin, _PIECE_BYTES):
                    await stream.send_bytes(piece)
                    begin += len(piece)
            except OffsetLostError:
                raise ClientGoneError("the client has read so slowly that its place is not kept any more") from None
    return stream.response


def set_up(app: web.Application) -> None:
    settings = app[APP_CONTEXT].settings
    sessions = StreamSessions(
        max_bytes=settings.streams_kept_bytes, kept_s=settings.stream_kept_s, keep_alive_s=settings.keep_alive_s
    )
    app[STREAM_SESSIONS] = sessions

    async def close(_: web.Application) -> None:
        await sessions.close()

    app.on_shutdown.append(close)


class _Clock:
    """Ticks while there are sessions."""

    def __init__(self, sessions: StreamSessions) -> None:
        self._sessions = sessions

    def tick(self, now_s: float) -> None:
        del now_s  # the loop's
        self._sessions.tick(time.monotonic())
        if not self._sessions:
            connection_watch().discard(self)


def _heard(opened: asyncio.Future[None]) -> None:
    """Its client may have gone: then nobody else looks at the error."""
    if not opened.cancelled():
        opened.exception()
