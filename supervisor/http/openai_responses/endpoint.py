"""POST /v1/responses and what belongs to it: OpenAI's Responses API, streamed or not.

Thin: reads a body, asks, writes what the writer makes of the answer. Responses are kept in memory (ServeSettings.
responses_kept_bytes) unless `store` is false, so that previous_response_id works until they make way or the server
ends.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from aiohttp import web

from luce.supervisor.http.admin.openapi import TEXT, Operation, record
from luce.supervisor.http.app_context import CLIENT, AppContext, context_of
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.openai_responses.background import BackgroundResponses
from luce.supervisor.http.openai_responses.events import ResponseWriter
from luce.supervisor.http.openai_responses.request import (
    Caller,
    ParsedResponses,
    ResponsesBody,
    read_request,
)
from luce.supervisor.http.openai_responses.response_store import KeptResponse, KeptResponses, encode_items
from luce.supervisor.http.openai_shared.fields import refusal
from luce.supervisor.http.transport.answer_stream import stream_answer
from luce.supervisor.http.transport.body import converted, read_body
from luce.supervisor.http.transport.connection import while_connected

MAX_LISTED = 100

OPERATIONS = (
    Operation(
        "post",
        "/v1/responses",
        "Answer a conversation (OpenAI Responses)",
        request=ResponsesBody,
        response=record(
            {
                "id": TEXT,
                "object": {"const": "response"},
                "status": {"enum": ["completed", "incomplete", "in_progress"]},
                "output": {"type": "array"},
            }
        ),
        streams=True,
    ),
    Operation("post", "/v1/responses/input_tokens", "Count the tokens of a request", request=ResponsesBody),
    Operation("get", "/v1/responses/{response_id}", "A response that is kept"),
    Operation("delete", "/v1/responses/{response_id}", "Forget a response"),
    Operation("get", "/v1/responses/{response_id}/input_items", "What a response answered"),
)


def add_routes(router: web.UrlDispatcher) -> None:
    api = ResponsesApi()
    for prefix in ("/v1/responses", "/responses"):
        router.add_post(prefix, api.create)
        router.add_post(f"{prefix}/input_tokens", api.count)
        router.add_get(f"{prefix}/{{response_id}}", api.show)
        router.add_delete(f"{prefix}/{{response_id}}", api.forget)
        router.add_get(f"{prefix}/{{response_id}}/input_items", api.show_input)
        router.add_post(f"{prefix}/{{response_id}}/cancel", api.cancel)


class ResponsesApi:
    """The handlers of one application, and what they keep."""

    def __init__(self) -> None:
        self._kept = KeptResponses()
        self._background = BackgroundResponses()

    async def create(self, request: web.Request) -> web.StreamResponse:
        body = await read_body(request, ResponsesBody)
        context = context_of(request)
        asked = await self._read(request, body, context)
        writer = ResponseWriter(asked.form)

        def keep(response: bytes) -> None:
            if response and body.store is not False and context.settings.responses_kept_bytes > 0:
                self._keep(asked, body, writer, response, context)

        if body.background:
            if context.settings.responses_kept_bytes == 0:
                raise refusal("background", "background: this server keeps no responses (responses_kept = 0)")
            return await self._background.begin(
                request,
                asked.form.id,
                asked.answer_request,
                writer,
                streams=body.stream is True,
                on_end=lambda: keep(writer.ended()),
            )
        if body.stream:
            response = await stream_answer(request, asked.answer_request, writer, lambda: keep(writer.final))
        else:
            await while_connected(request, _write_all(context, asked, writer))
            response = web.Response(body=writer.final, content_type="application/json")
        keep(writer.final)
        return response

    async def count(self, request: web.Request) -> web.Response:
        body = await read_body(request, ResponsesBody)
        context = context_of(request)
        asked = await self._read(request, body, context)
        n_tokens = await while_connected(request, context.answerer.count_tokens(asked.answer_request))
        return web.json_response({"object": "response.input_tokens", "input_tokens": n_tokens})

    async def show(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["response_id"]
        running = self._background.look(request[CLIENT], name)
        found = self._find(request).response if running is None else running
        if request.query.get("stream") in {"true", "1"}:
            return await self._background.stream(request, name)
        return web.Response(body=found, content_type="application/json")

    async def forget(self, request: web.Request) -> web.Response:
        kept = self._find(request)
        self._kept.drop(kept.id)
        return web.json_response({"id": kept.id, "object": "response", "deleted": True})

    async def show_input(self, request: web.Request) -> web.Response:
        """The whole conversation that was answered, newest first unless `order` says otherwise."""
        kept = self._find(request)
        earlier = [] if kept.previous is None else self._kept.conversation(kept.previous, kept.client)
        items = [*(earlier or ()), *kept.input_items()]
        return web.json_response(_page(items, request))

    async def cancel(self, request: web.Request) -> web.Response:
        ended = await self._background.cancel(request[CLIENT], request.match_info["response_id"])
        if ended is None:
            self._find(request)
            raise refusal("response_id", "only a background response that is at work can be cancelled")
        return web.Response(body=ended, content_type="application/json")

    async def _read(self, request: web.Request, body: ResponsesBody, context: AppContext) -> ParsedResponses:
        client = request[CLIENT]
        earlier: list[Any] = []
        if body.previous_response_id is not None:
            earlier = self._conversation(body.previous_response_id, client)
        if isinstance(body.input, list):
            body.input = self._kept.referred(body.input, client)
        caller = Caller(request.headers, client)
        model = context.served_name(body.model)
        read = partial(read_request, body, earlier, model=model, vocabulary=context.text, caller=caller)
        return await converted(request, read)

    def _conversation(self, name: str, client: str) -> list[Any]:
        earlier = self._kept.conversation(name, client)
        if earlier is None:
            text = (
                f"Previous response with id {name[:80]!r} not found. Responses are kept in memory for a while only, and"
                " not with store=false: send the whole conversation as input."
            )
            raise ApiError(ErrorKind.INVALID, "previous_response_not_found", text, param="previous_response_id")
        return earlier

    def _find(self, request: web.Request) -> KeptResponse:
        name = request.match_info["response_id"]
        kept = self._kept.find(name, request[CLIENT])
        if kept is None:
            text = f"Response with id {name[:80]!r} not found: they are kept in memory for a while only."
            raise ApiError(ErrorKind.NOT_FOUND, "response_not_found", text, param="response_id")
        return kept

    def _keep(
        self,
        asked: ParsedResponses,
        body: ResponsesBody,
        writer: ResponseWriter,
        response: bytes,
        context: AppContext,
    ) -> None:
        kept = KeptResponse(
            asked.form.id,
            asked.answer_request.client,
            body.previous_response_id,
            encode_items(asked.items),
            response,
            tuple(item["id"] for item in writer.output),
        )
        self._kept.keep(kept, limit_bytes=context.settings.responses_kept_bytes)


async def _write_all(context: AppContext, asked: ParsedResponses, writer: ResponseWriter) -> None:
    async with context.answerer.open(asked.answer_request) as answering:
        async for event in answering.events():
            writer.feed(event)


def _page(items: list[Any], request: web.Request) -> dict[str, Any]:
    query = request.query
    limit = query.get("limit", "20")
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= MAX_LISTED:
        raise refusal("limit", f"limit must be a whole number from 1 to {MAX_LISTED}")
    if query.get("order", "desc") != "asc":
        items.reverse()
    names = [item["id"] if isinstance(item, dict) else None for item in items]
    if "after" in query:
        items = items[names.index(query["after"]) + 1 :] if query["after"] in names else []
    page = items[: int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > len(page),
    }
