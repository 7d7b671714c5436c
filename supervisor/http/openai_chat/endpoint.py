"""POST /v1/chat/completions: OpenAI's chat dialect, llama-server's and vLLM's extensions with it.

Also under /chat/completions, as llama-server has it. Beside it .../input_tokens, which counts a conversation's tokens.
"""

from __future__ import annotations

from functools import partial

from aiohttp import web

from luce.supervisor.http.admin.openapi import COUNT, TEXT, Operation, record
from luce.supervisor.http.app_context import CLIENT, AppContext, context_of
from luce.supervisor.http.openai_chat.body import ChatBody
from luce.supervisor.http.openai_chat.emit import ChatStream, whole_chat
from luce.supervisor.http.openai_chat.parse import ParsedRequest, read_chat
from luce.supervisor.http.openai_shared.shapes import answer_schema, json_response
from luce.supervisor.http.transport.answer_stream import stream_answer, whole_answer
from luce.supervisor.http.transport.body import converted, read_body
from luce.supervisor.http.transport.connection import while_connected

OPERATIONS = (
    Operation(
        method="post",
        path="/v1/chat/completions",
        summary="Answer a conversation (OpenAI chat completions)",
        request=ChatBody,
        response=answer_schema({"message": {"type": "object", "required": ["role", "content"]}}),
        streams=True,
    ),
    Operation(
        method="post",
        path="/v1/chat/completions/input_tokens",
        summary="Count the tokens of a conversation",
        request=ChatBody,
        response=record({"object": TEXT, "input_tokens": COUNT}),
    ),
)


def add_routes(router: web.UrlDispatcher) -> None:
    for path in ("/v1/chat/completions", "/chat/completions"):
        router.add_post(path, post_chat)
        router.add_post(f"{path}/input_tokens", post_input_tokens)


async def post_chat(request: web.Request) -> web.StreamResponse:
    parsed, context, model = await _read(request)
    if parsed.streams:
        return await stream_answer(request, parsed.answer_request, ChatStream(parsed, model))
    choices, usage = await whole_answer(request, parsed.answer_request)
    answer = whole_chat(choices, usage, parsed, model)
    if parsed.shows_prompt:
        text = await while_connected(request, context.answerer.prompt_text(parsed.answer_request))
        answer["__verbose"] = {"prompt": text}
    return json_response(answer)


async def post_input_tokens(request: web.Request) -> web.StreamResponse:
    parsed, context, _ = await _read(request)
    n_tokens = await while_connected(request, context.answerer.count_tokens(parsed.answer_request))
    return json_response({"object": "chat.completion.input_tokens", "input_tokens": n_tokens})


async def _read(request: web.Request) -> tuple[ParsedRequest, AppContext, str]:
    """And the model's name in the answer."""
    body = await read_body(request, ChatBody)
    context = context_of(request)
    read = partial(
        read_chat,
        body,
        context.text,
        max_choices=context.settings.max_choices,
        headers=request.headers,
        client=request[CLIENT],
    )
    parsed = await converted(request, read)
    return parsed, context, context.served_name(body.model)
