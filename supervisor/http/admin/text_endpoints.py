"""Routes that hand out the model's text side, in llama-server's shapes and vLLM's: texts to tokens and back, and
conversations to the prompt that the chat API would make of them.

All of it runs in threads: a long text takes its time. Knows no engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from aiohttp import web

from luce.supervisor.http.admin.openapi import Operation
from luce.supervisor.http.admin.shapes import CONTENT, PROMPT, TOKENIZER, TOKENS, DetokenizeBody, TokenizeBody
from luce.supervisor.http.app_context import CLIENT, context_of
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.keys.key_ring import window_of
from luce.supervisor.http.openai_chat.body import ChatBody
from luce.supervisor.http.openai_chat.parse import read_chat
from luce.supervisor.http.transport.body import converted, read_body
from luce.supervisor.http.transport.connection import while_connected
from luce.supervisor.text import TextModel

OPERATIONS = (
    Operation("post", "/tokenize", "A text as tokens", TokenizeBody, TOKENS),
    Operation("post", "/detokenize", "Tokens as a text", DetokenizeBody, CONTENT),
    Operation("get", "/tokenizer_info", "What a client needs to know to leave its texts to /tokenize", None, TOKENIZER),
    Operation("post", "/apply-template", "A conversation as the prompt that is made of it", ChatBody, PROMPT),
)


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_post("/tokenize", post_tokenize)
    router.add_post("/detokenize", post_detokenize)
    router.add_get("/tokenizer_info", get_tokenizer_info)
    router.add_post("/apply-template", post_apply_template)


async def post_tokenize(request: web.Request) -> web.Response:
    body = await read_body(request, TokenizeBody)
    context = context_of(request)
    text = context.text
    tokens = await while_connected(request, asyncio.to_thread(_tokenize, text, body))
    if body.prompt is not None:
        n_ctx = window_of(request, context.n_ctx)
        return web.json_response({"tokens": tokens, "count": len(tokens), "max_model_len": n_ctx})
    if not body.with_pieces:
        return web.json_response({"tokens": tokens})
    return web.json_response({"tokens": [{"id": token, "piece": _piece(text, token)} for token in tokens]})


async def post_detokenize(request: web.Request) -> web.Response:
    body = await read_body(request, DetokenizeBody)
    text = context_of(request).text
    _check_tokens(text, body.tokens, "tokens")
    content = await while_connected(request, asyncio.to_thread(text.detokenize, body.tokens, unparse_special=True))
    spelled = content.decode("utf-8", "replace")
    return web.json_response({"content": spelled, "prompt": spelled})


async def get_tokenizer_info(request: web.Request) -> web.Response:
    """vLLM's: lm-eval leaves its texts to servers that have it."""
    context = context_of(request)
    info = context.text.info
    has_template = info.has_template or context.settings.chat_template is not None
    return web.json_response(
        {
            "tokenizer_class": "llama.cpp",
            "bos_token": _spelling(context.text, info.bos),
            "eos_token": _spelling(context.text, info.eos),
            "add_bos_token": info.add_bos,
            "chat_template": context.text.template.source if has_template else None,
            "model_max_length": window_of(request, context.n_ctx),
        }
    )


async def post_apply_template(request: web.Request) -> web.Response:
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
    prompt = await while_connected(request, context.answerer.prompt_text(parsed.answer_request))
    return web.json_response({"prompt": prompt})


def _spelling(text: TextModel, token: int | None) -> str | None:
    return None if token is None else text.piece(token, special=True).decode("utf-8", "replace")


def _tokenize(text: TextModel, body: TokenizeBody) -> list[int]:
    if body.prompt is not None:
        return text.tokenize(body.prompt, add_special=body.add_special_tokens, parse_special=body.parse_special)
    content = body.content
    if content is None:
        return []
    if isinstance(content, str):
        return text.tokenize(content, add_special=body.add_special, parse_special=body.parse_special)
    _check_tokens(text, [part for part in content if isinstance(part, int)], "content")
    tokens: list[int] = []
    for number, part in enumerate(content):
        if isinstance(part, int):
            tokens.append(part)
        else:
            is_first = number == 0 and body.add_special
            tokens += text.tokenize(part, add_special=is_first, parse_special=body.parse_special)
    return tokens


def _piece(text: TextModel, token: int) -> Any:
    """A text, or the bytes of a part of one."""
    piece = text.piece(token, special=True)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def _check_tokens(text: TextModel, tokens: Sequence[int], param: str) -> None:
    if any(token >= text.n_vocab for token in tokens):
        told = f"{param}: a token is a number from 0 to {text.n_vocab - 1}"
        raise ApiError(ErrorKind.INVALID, "token_out_of_range", told, param=param)
