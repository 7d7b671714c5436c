"""Anthropic's Messages API: `/v1/messages`, streamed and not, and `/v1/messages/count_tokens`.

Reads a request, has it answered, writes what comes. How bodies and events look is in the files beside it.

Where it is not like the original: message_start counts the whole prompt as input_tokens, because what the cache serves
of it is known only when the model has read it; message_delta tells the final numbers, and `luce` in its usage why they
were not better. Thinking is signed for form's sake, and a signature of thinking that was not shown carries its text.
Without `thinking` in a request the model's template decides. Limits that only Anthropic's models have are not checked:
budgets below 1,024, temperatures from 1 to 2, results without calls. A text block of nothing stands for an answer of
nothing. `seed`, `chat_template_kwargs` and `grammar` are taken too.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import partial
from typing import TypedDict

from aiohttp import web

from luce.supervisor.http.admin.openapi import Operation
from luce.supervisor.http.anthropic.betas import read_betas
from luce.supervisor.http.anthropic.conversion import hides_thinking, request_of_count, request_of_messages
from luce.supervisor.http.anthropic.events import MessageStream, message_json
from luce.supervisor.http.anthropic.shapes import MESSAGE, TOKEN_COUNT, CountTokensRequest, MessagesRequest
from luce.supervisor.http.app_context import CLIENT, REQUEST_ID, context_of
from luce.supervisor.http.transport.answer_stream import stream_answer, whole_answer
from luce.supervisor.http.transport.body import converted, read_body
from luce.supervisor.http.transport.connection import while_connected

SESSION_HEADERS = ("X-Claude-Code-Session-Id", "X-Session-Id")

OPERATIONS = (
    Operation(
        method="post",
        path="/v1/messages",
        summary="Anthropic's Messages API",
        request=MessagesRequest,
        response=MESSAGE,
        streams=True,
    ),
    Operation(
        method="post",
        path="/v1/messages/count_tokens",
        summary="How many tokens a prompt has",
        request=CountTokensRequest,
        response=TOKEN_COUNT,
    ),
)


class _Form(TypedDict):
    """How an answer is written."""

    hides_thinking: bool
    n_ctx: int | None


def add_routes(router: web.UrlDispatcher) -> None:
    for path in ("/v1/messages", "/messages"):
        router.add_post(path, create_message)
        router.add_post(f"{path}/count_tokens", count_tokens)


async def create_message(request: web.Request) -> web.StreamResponse:
    body = await read_body(request, MessagesRequest)
    form: _Form = {"hides_thinking": hides_thinking(body), "n_ctx": read_betas(request)}
    read = partial(
        request_of_messages,
        body,
        client=request[CLIENT],
        session=_session_header(request.headers),
        n_vocab=context_of(request).text.n_vocab,
        headers=request.headers,
    )
    answer_request = await converted(request, read)
    message_id = f"msg_{secrets.token_hex(12)}"
    model = context_of(request).served_name(body.model)
    if body.stream:
        names = (message_id, request[REQUEST_ID], model)
        return await stream_answer(request, answer_request, MessageStream(*names, **form))
    (choice,), usage = await whole_answer(request, answer_request)
    return web.json_response(message_json(message_id, model, choice, usage, **form))


async def count_tokens(request: web.Request) -> web.StreamResponse:
    body = await read_body(request, CountTokensRequest)
    answer_request = await converted(request, partial(request_of_count, body, client=request[CLIENT]))
    n_tokens = await while_connected(request, context_of(request).answerer.count_tokens(answer_request))
    return web.json_response({"input_tokens": n_tokens})


def _session_header(headers: Mapping[str, str]) -> str:
    return next((value for name in SESSION_HEADERS if (value := headers.get(name))), "")
