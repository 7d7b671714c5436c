"""Anthropic's Messages API: `/v1/messages`, streamed and not, and `/v1/messages/count_tokens`.

Reads a request, has it answered, writes what comes. How bodies and events look is in the other anthropic_* files.

Where it is not like the original: message_start counts the whole prompt as input_tokens, because what the cache serves
of it is known only when the model has read it; message_delta tells the final numbers, and `luce` in its usage why they
were not better. Thinking is signed for form's sake, and a signature of thinking that was not shown carries its text.
Without `thinking` in a request the model's template decides. Limits that only Anthropic's models have are not checked:
budgets below 1,024, temperatures from 1 to 2, results without calls. A text block of nothing stands for an answer of
nothing. `seed` and `chat_template_kwargs` are taken too.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from aiohttp import web

from luce.supervisor.http.admin.openapi import Operation
from luce.supervisor.http.answering.answer_events import AnswerFinished, ChoiceFinished
from luce.supervisor.http.answering.answer_request import AnswerRequest
from luce.supervisor.http.anthropic.conversion import ask_of_count, ask_of_messages, hides_thinking
from luce.supervisor.http.anthropic.events import PING, MessageStream, error_event, message_json
from luce.supervisor.http.anthropic.shapes import CountTokensRequest, MessageResponse, MessagesRequest, TokenCount
from luce.supervisor.http.app_context import APP_CONTEXT, BODY, CLIENT, REQUEST_ID, AppContext
from luce.supervisor.http.errors import ApiError
from luce.supervisor.http.transport.body import fingerprint, read_body
from luce.supervisor.http.transport.connection import while_connected
from luce.supervisor.http.transport.error_bodies import anthropic_error
from luce.supervisor.http.transport.fast_path_writer import hand_on
from luce.supervisor.http.transport.sse import EventStream

SESSION_HEADERS = ("X-Claude-Code-Session-Id", "X-Session-Id")

OPERATIONS = (
    Operation(
        method="post",
        path="/v1/messages",
        summary="Anthropic's Messages API",
        request=MessagesRequest,
        response=MessageResponse.model_json_schema(mode="serialization"),
        streams=True,
    ),
    Operation(
        method="post",
        path="/v1/messages/count_tokens",
        summary="How many tokens a prompt has",
        request=CountTokensRequest,
        response=TokenCount.model_json_schema(mode="serialization"),
    ),
)


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_post("/v1/messages", create_message)
    router.add_post("/v1/messages/count_tokens", count_tokens)


async def create_message(request: web.Request) -> web.StreamResponse:
    body = await read_body(request, MessagesRequest)
    ask = ask_of_messages(
        body,
        client=request[CLIENT],
        session=_session_header(request.headers),
        fingerprint=fingerprint("anthropic", request[BODY]),
    )
    context = request.app[APP_CONTEXT]
    message_id = f"msg_{secrets.token_hex(12)}"
    if body.stream:
        stream = MessageStream(message_id, body.model, hides_thinking=hides_thinking(body))
        return await _stream(request, context, ask, stream)
    finished, ended = await while_connected(request, _answer(context, ask))
    message = message_json(message_id, body.model, finished, ended.usage, hides_thinking=hides_thinking(body))
    return web.json_response(message)


async def count_tokens(request: web.Request) -> web.StreamResponse:
    body = await read_body(request, CountTokensRequest)
    ask = ask_of_count(body, client=request[CLIENT])
    n_tokens = await while_connected(request, request.app[APP_CONTEXT].answerer.count_tokens(ask))
    return web.json_response({"input_tokens": n_tokens})


async def _stream(
    request: web.Request, context: AppContext, ask: AnswerRequest, message: MessageStream
) -> web.StreamResponse:
    """Once the first event is out, an error is an event too, and nothing comes after it."""
    async with context.answerer.open(ask) as answering:
        async with EventStream(request, keep_alive=lambda: PING, settings=context.settings) as stream:
            await stream.send_bytes(message.start(answering.n_prompt))
            try:
                await hand_on(answering, stream, message.events)
            except ApiError as error:
                await stream.send_bytes(error_event(anthropic_error(error, request[REQUEST_ID])))
        return stream.response


async def _answer(context: AppContext, ask: AnswerRequest) -> tuple[ChoiceFinished, AnswerFinished]:
    finished: ChoiceFinished | None = None
    async with context.answerer.open(ask) as answering:
        async for event in answering.events():
            match event:
                case ChoiceFinished():
                    finished = event
                case AnswerFinished():
                    assert finished is not None, "an answer ends after its choice"
                    return finished, event
    raise AssertionError("an answer ends with its last event or an error")


def _session_header(headers: Mapping[str, str]) -> str:
    return next((value for name in SESSION_HEADERS if (value := headers.get(name))), "")
