"""An answer on its way to one client: streamed in a dialect's words as it comes, or taken whole.

It must not know what the events say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aiohttp import web

from luce.supervisor.http.answering.answer_events import AnswerEvent, AnswerFinished, ChoiceFinished, Usage
from luce.supervisor.http.app_context import Answerer, Answering, context_of
from luce.supervisor.http.errors import ApiError
from luce.supervisor.http.prompts.answer_request import AnswerRequest
from luce.supervisor.http.streams.resumable_answer import CONVERSATION_ID, answer_source, resumable_answer
from luce.supervisor.http.transport.answer_writer import AnswerWriter
from luce.supervisor.http.transport.connection import while_connected
from luce.supervisor.http.transport.sse import EventStream


class StreamFastPath:
    """Implements app_context.FastPath: events in a dialect's bytes, to a client that has read all before them."""

    def __init__(self, stream: EventStream, encode: Callable[[AnswerEvent], bytes]) -> None:
        self._stream = stream
        self._encode = encode
        self.is_clear = stream.is_clear

    def show(self, events: Sequence[AnswerEvent]) -> None:
        if data := b"".join(map(self._encode, events)):
            self._stream.send_now(data)


async def send_events(answering: Answering, stream: EventStream, encode: Callable[[AnswerEvent], bytes]) -> None:
    """The whole answer. Tokens go out in the turn of the loop that brings them while the client keeps up; while it does
    not, this task waits for it, and what comes meanwhile is joined. Raises ApiError."""
    async for event in answering.events(StreamFastPath(stream, encode)):
        if data := encode(event):
            await stream.send_bytes(data)


async def stream_answer(
    request: web.Request, asked: AnswerRequest, writer: AnswerWriter, on_end: Callable[[], None] | None = None
) -> web.StreamResponse:
    """What is wrong with the request is told by the status; once the stream has begun, by its last event. `on_end` is
    called for an answer that goes on without its client."""
    context = context_of(request)
    if (name := request.headers.get(CONVERSATION_ID)) is not None:
        return await resumable_answer(request, name, answer_source(context.answerer, asked, writer), on_end)
    async with (
        context.answerer.open(asked) as answering,
        EventStream(request, keep_alive=writer.keep_alive, settings=context.settings) as stream,
    ):
        await stream.send_bytes(writer.first(answering.n_prompt))
        try:
            await send_events(answering, stream, writer.feed)
        except ApiError as error:
            await stream.send_bytes(writer.fail(error))
    return stream.response


async def whole_answer(request: web.Request, asked: AnswerRequest) -> tuple[list[ChoiceFinished], Usage]:
    """All choices in their order. Raises ApiError, or ClientGoneError."""
    return await while_connected(request, take_whole(context_of(request).answerer, asked))


async def take_whole(answerer: Answerer, asked: AnswerRequest) -> tuple[list[ChoiceFinished], Usage]:
    choices: list[ChoiceFinished] = []
    async with answerer.open(asked) as answering:
        async for event in answering.events():
            if isinstance(event, ChoiceFinished):
                choices.append(event)
            elif isinstance(event, AnswerFinished):
                return sorted(choices, key=lambda choice: choice.choice), event.usage
    raise AssertionError("an answer ends with AnswerFinished or an error")
