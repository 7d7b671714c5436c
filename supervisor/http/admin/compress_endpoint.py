"""POST /compress: what of a text matters to a question, or to its own end: the text shorter, in its own words.

Nothing is generated, and no lane is taken. Must not know how parts are chosen.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, StrictStr, WithJsonSchema

from luce.protocol import MAX_MARKS
from luce.supervisor.engine.generation import Compressed
from luce.supervisor.http.admin.openapi import COUNT, NUMBER, TEXT, Operation, listed, record
from luce.supervisor.http.app_context import context_of
from luce.supervisor.http.errors import ApiError, ErrorKind, api_error
from luce.supervisor.http.keys.key_ring import charge
from luce.supervisor.http.openai_shared.fields import refusal, whole
from luce.supervisor.http.openai_shared.shapes import encode
from luce.supervisor.http.sampling_fields import INT32_MAX, Real, Whole
from luce.supervisor.http.transport.body import read_body
from luce.supervisor.http.transport.connection import while_connected
from luce.supervisor.model_backend import ModelBackend
from luce.supervisor.requests import DeadlineError, PromptTooLongError
from luce.supervisor.text import TextModel
from luce.supervisor.text.excerpt import QUESTION_BEGINS, SEPARATOR, Excerpt, ExcerptTask

PATHS = ("/compress", "/v1/compress")
MAX_SEPARATOR_CHARACTERS = 1024

_SPAN = listed(COUNT, minItems=2, maxItems=2)
_CONTENT = {"anyOf": [{"type": "string", "minLength": 1}, listed(COUNT, minItems=1)]}
_ANSWER = record(
    {
        "content": TEXT,
        "tokens": listed(COUNT),
        "parts": listed(_SPAN),
        "input_tokens": NUMBER,
        "output_tokens": NUMBER,
    }
)


class CompressBody(BaseModel):
    """Either `share` or `max_tokens`. Unknown fields are tolerated; null is the same as absent."""

    model_config = ConfigDict(extra="allow")

    content: Annotated[Any, WithJsonSchema(_CONTENT)] = None
    question: StrictStr | None = None
    share: Real | None = None
    max_tokens: Whole | None = None
    keep: Annotated[Any, WithJsonSchema(listed(_SPAN, maxItems=MAX_MARKS))] = None
    separator: StrictStr | None = None


OPERATIONS = (Operation("post", "/compress", "The parts of a text that matter to a question", CompressBody, _ANSWER),)


def add_routes(router: web.UrlDispatcher) -> None:
    for path in PATHS:
        router.add_post(path, post_compress)


@dataclass(frozen=True, slots=True)
class Asked:
    task: ExcerptTask
    given: str | None
    separator: str
    max_tokens: int | None


async def post_compress(request: web.Request) -> web.Response:
    body = await read_body(request, CompressBody)
    context = context_of(request)
    if not context.supervisor.has_scorer:
        text = "this server cannot choose what matters in a text: start it with --prefill-scorer FILE.gguf"
        raise ApiError(ErrorKind.UNSUPPORTED, "no_prefill_scorer", text)
    async with context.hold():
        work = _compress(context.supervisor, context.text, body, context.settings.request_timeout_s)
        n_tokens, answer = await while_connected(request, work)
    charge(request, n_tokens)
    return web.Response(body=answer, content_type="application/json")


async def _compress(
    supervisor: ModelBackend, text: TextModel, body: CompressBody, timeout_s: float | None
) -> tuple[int, bytes]:
    """How many tokens were read, and the answer."""
    try:
        async with asyncio.timeout(timeout_s):
            asked = await asyncio.to_thread(read_task, body, text)
            task = asked.task
            chosen = await supervisor.compress(task.prompt, task.share, keep=task.keep)
            answer = await asyncio.to_thread(_answer, asked, chosen, text)
    except TimeoutError:
        raise api_error(DeadlineError(f"the request was to take {timeout_s:g} s at most")) from None
    except PromptTooLongError as error:
        raise refusal("content", f"'content': {error.told}.", "context_length_exceeded") from error
    return len(task.prompt), answer


def read_task(body: CompressBody, text: TextModel) -> Asked:
    """Raises ApiError, and TextError where the text cannot be tokenised."""
    share, max_tokens = body.share, body.max_tokens
    if (share is None) == (max_tokens is None):
        param = "share" if share is None else "max_tokens"
        raise refusal(param, "Invalid 'share' and 'max_tokens': give one of them, and not both.")
    if share is not None and not 0 < share <= 1:
        raise refusal("share", f"Invalid 'share': it must be above 0 and at most 1, but it is {share:g}.")
    whole(max_tokens, "max_tokens", 1, INT32_MAX)
    separator = SEPARATOR if body.separator is None else body.separator
    if len(separator) > MAX_SEPARATOR_CHARACTERS:
        raise refusal("separator", f"Invalid 'separator': it has at most {MAX_SEPARATOR_CHARACTERS} characters.")
    ids = _ids(body.content, text)
    question = text.tokenize(f"{QUESTION_BEGINS}{body.question}") if body.question else []
    n_wanted = max(round(share * len(ids)), 1) if share is not None else max_tokens
    assert n_wanted is not None
    task = ExcerptTask.of(ids, question, n_wanted, _read_keep(body.keep, len(ids)))
    return Asked(task, body.content if isinstance(body.content, str) else None, separator, max_tokens)


def _ids(content: Any, text: TextModel) -> list[int]:
    """A document may spell control tokens: here they are nothing but text."""
    if isinstance(content, str):
        ids = text.tokenize(content)
    elif isinstance(content, list):
        for number, token in enumerate(content):
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < text.n_vocab:
                told = f"Invalid 'content[{number}]': a token is a number from 0 to {text.n_vocab - 1}."
                raise refusal("content", told, "token_out_of_range")
        ids = content
    else:
        told = "Invalid type for 'content': expected a string or an array of token ids."
        raise refusal("content", told, "invalid_type")
    if not ids:
        raise refusal("content", "Invalid 'content': it is empty, so that there is nothing to choose.", "empty_input")
    return ids


def _read_keep(value: Any, n_text: int) -> list[tuple[int, int]]:
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > MAX_MARKS:
        told = f"Invalid 'keep': expected an array of at most {MAX_MARKS} pairs of token positions."
        raise refusal("keep", told, "invalid_type")
    spans = []
    for number, span in enumerate(value):
        is_pair = isinstance(span, list) and len(span) == 2 and all(type(place) is int for place in span)
        if not is_pair or not 0 <= span[0] < span[1] <= n_text:
            told = (
                f"Invalid 'keep[{number}]': expected [begin, end] with 0 <= begin < end <= {n_text}, the length of the"
                " text in tokens."
            )
            raise refusal("keep", told)
        spans.append((span[0], span[1]))
    return spans


def _answer(asked: Asked, chosen: Compressed, text: TextModel) -> bytes:
    excerpt = Excerpt.of(asked.task, chosen.parts, text, separator=asked.separator, given=asked.given)
    n_out = len(excerpt.tokens)
    if asked.max_tokens is not None and n_out > asked.max_tokens:
        told = (
            f"Invalid 'max_tokens': the text's beginning, its end and 'keep' alone have {n_out} tokens, but it is"
            f" {asked.max_tokens}."
        )
        raise refusal("max_tokens", told)
    return encode(
        {
            "content": excerpt.content,
            "tokens": excerpt.tokens,
            "parts": excerpt.parts,
            "input_tokens": excerpt.n_text,
            "output_tokens": n_out,
        }
    )
