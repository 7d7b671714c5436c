"""POST /v1/completions: OpenAI's legacy completions, of texts or token ids, without a template. Beside them /completion
and /completions, which are the same in llama-server's words, as there, and /infill.

Must not know chats. Several prompts are answered beside each other, a few at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from aiohttp import web

from luce.supervisor.http.admin.openapi import TEXT, Operation
from luce.supervisor.http.answering.answer_events import AnswerEvent, ChoiceFinished, Usage
from luce.supervisor.http.app_context import CLIENT, Answerer, Answering, AppContext, context_of
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.keys.key_ring import window_of
from luce.supervisor.http.openai_completions.emit import CompletionStream, whole_completion
from luce.supervisor.http.openai_completions.generation_settings import generation_settings
from luce.supervisor.http.openai_completions.llama_server import (
    ANSWER,
    InfillBody,
    LlamaCompletionBody,
    LlamaStream,
    read_llama,
    whole_llama,
)
from luce.supervisor.http.openai_completions.parse import (
    CompletionBody,
    ParsedCompletion,
    prompt_text,
    read_completion,
)
from luce.supervisor.http.openai_shared.shapes import answer_schema, error_event, json_response
from luce.supervisor.http.prompts.answer_request import AnswerRequest, TextPrompt
from luce.supervisor.http.prompts.infill import NoInfillError, gap_tokens
from luce.supervisor.http.streams.resumable_answer import CONVERSATION_ID, EventSource, resumable_answer
from luce.supervisor.http.transport.answer_stream import send_events, take_whole
from luce.supervisor.http.transport.body import read_body
from luce.supervisor.http.transport.connection import while_connected
from luce.supervisor.http.transport.sse import EventStream

N_AT_ONCE = 4  # prompts of one request: its share of a queue that others wait in too


OPERATIONS = (
    Operation(
        method="post",
        path="/v1/completions",
        summary="Go on from a text (OpenAI legacy completions)",
        request=CompletionBody,
        response=answer_schema({"text": TEXT}),
        streams=True,
    ),
    Operation(
        method="post",
        path="/completion",
        summary="Go on from a text (llama-server)",
        request=LlamaCompletionBody,
        response=ANSWER,
        streams=True,
    ),
    Operation(
        method="post",
        path="/infill",
        summary="Write what stands between two texts (llama-server)",
        request=InfillBody,
        response=ANSWER,
        streams=True,
    ),
)


class Chunks(Protocol):
    """The answers to several prompts on their way out."""

    def first(self) -> bytes: ...

    def keep_alive(self) -> bytes: ...

    def feed(self, prompt: int, event: AnswerEvent) -> bytes: ...


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_post("/v1/completions", post_completion)
    router.add_post("/completion", post_llama_completion)
    router.add_post("/completions", post_llama_completion)
    router.add_post("/infill", post_infill)


async def post_completion(request: web.Request) -> web.StreamResponse:
    body = await read_body(request, CompletionBody)
    context = context_of(request)
    parsed = _read(request, context, body)
    model = context.served_name(body.model)
    if parsed.streams:
        return await _stream(request, context, parsed.answer_requests, CompletionStream(parsed, model))
    answers = await while_connected(request, _take_all(context.answerer, parsed.answer_requests))
    return json_response(whole_completion(answers, parsed, model))


async def post_llama_completion(request: web.Request) -> web.StreamResponse:
    body = await read_body(request, LlamaCompletionBody)
    return await _answer_llama(request, body, _read(request, context_of(request), body.as_openai()))


async def _answer_llama(
    request: web.Request, body: LlamaCompletionBody, parsed: ParsedCompletion
) -> web.StreamResponse:
    context = context_of(request)
    settings = generation_settings(
        context.defaults.apply(parsed.answer_requests[0]),
        seed=context.supervisor.config.seed,
        streams=parsed.streams,
        shows_timings=parsed.shows_timings,
    )
    llama = read_llama(
        body,
        parsed,
        model=context.served_name(body.model),
        prompts=[prompt_text(answer_request, context.text) for answer_request in parsed.answer_requests],
        settings=settings,
        n_ctx=window_of(request, context.supervisor.n_ctx),
    )
    if parsed.streams:
        return await _stream(request, context, parsed.answer_requests, LlamaStream(llama))
    answers = await while_connected(request, _take_all(context.answerer, parsed.answer_requests))
    return json_response(whole_llama(answers, llama))


async def post_infill(request: web.Request) -> web.StreamResponse:
    """What stands between two texts, in llama-server's words."""
    body = await read_body(request, InfillBody)
    context = context_of(request)
    try:
        gap_tokens(context.text.info)
    except NoInfillError as error:
        text = f"Infill is not supported by this model: {error}."
        raise ApiError(ErrorKind.UNSUPPORTED, "not_supported", text) from error
    parsed = _read(request, context, body.as_openai())
    n_ctx = window_of(request, context.supervisor.n_ctx)
    answer_requests = []
    for answer_request in parsed.answer_requests:
        assert isinstance(answer_request.prompt, TextPrompt)
        prompt = replace(answer_request.prompt, infill=body.infill(n_ctx, answer_request.max_tokens))
        answer_requests.append(replace(answer_request, prompt=prompt))
    return await _answer_llama(request, body, replace(parsed, answer_requests=answer_requests))


def _read(request: web.Request, context: AppContext, body: CompletionBody) -> ParsedCompletion:
    return read_completion(
        body,
        context.text,
        max_choices=context.settings.max_choices,
        headers=request.headers,
        client=request[CLIENT],
    )


async def _take_all(
    answerer: Answerer, answer_requests: Sequence[AnswerRequest]
) -> list[tuple[list[ChoiceFinished], Usage]]:
    gate = asyncio.Semaphore(N_AT_ONCE)

    async def take(answer_request: AnswerRequest) -> tuple[list[ChoiceFinished], Usage]:
        async with gate:
            return await take_whole(answerer, answer_request)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(take(answer_request)) for answer_request in answer_requests]
    except BaseExceptionGroup as errors:
        raise _only_error(errors) from errors
    return [task.result() for task in tasks]


async def _stream(
    request: web.Request, context: AppContext, answer_requests: Sequence[AnswerRequest], chunks: Chunks
) -> web.StreamResponse:
    """The first prompt is opened before anything is sent: what is wrong with it is told by the status then."""
    if (name := request.headers.get(CONVERSATION_ID)) is not None:
        return await resumable_answer(request, name, _source(context.answerer, answer_requests, chunks))

    async def send(answering: Answering, number: int) -> None:
        await send_events(answering, stream, partial(chunks.feed, number))

    async with (
        context.answerer.open(answer_requests[0]) as answering,
        EventStream(request, keep_alive=chunks.keep_alive, settings=context.settings) as stream,
    ):
        await stream.send_bytes(chunks.first())
        try:
            await _send_all(context.answerer, answer_requests, answering, send)
        except ApiError as error:
            await stream.send_bytes(error_event(error))
    return stream.response


def _source(answerer: Answerer, answer_requests: Sequence[AnswerRequest], chunks: Chunks) -> EventSource:
    """The same for whoever reads it later."""

    async def run(write: Callable[[bytes], None]) -> None:
        async def send(answering: Answering, number: int) -> None:
            async for event in answering.events():
                write(chunks.feed(number, event))

        async with answerer.open(answer_requests[0]) as answering:
            write(chunks.first())
            try:
                await _send_all(answerer, answer_requests, answering, send)
            except ApiError as error:
                write(error_event(error))

    return EventSource(run, chunks.keep_alive)


async def _send_all(
    answerer: Answerer,
    answer_requests: Sequence[AnswerRequest],
    first: Answering,
    send: Callable[[Answering, int], Awaitable[None]],
) -> None:
    gate = asyncio.Semaphore(N_AT_ONCE - 1)  # the first one is open already

    async def open_and_send(number: int) -> None:
        async with gate, answerer.open(answer_requests[number]) as answering:
            await send(answering, number)

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(1, len(answer_requests)):
                group.create_task(open_and_send(number))
            await send(first, 0)
    except BaseExceptionGroup as errors:
        raise _only_error(errors) from errors


def _only_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What to say of several tasks that failed together: the first of our own errors, else the first."""
    leaves = list(_leaves(group))
    return next((error for error in leaves if isinstance(error, ApiError)), leaves[0])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
