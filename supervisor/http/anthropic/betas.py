"""The header `anthropic-beta`: what a client asks for beside its body.

What these names switch on at Anthropic is on here anyhow, where it exists at all: edits of the context, thinking
between calls, schemas, caching. So only those about the window change anything: one that asks for a larger one than the
model has is told the true one, in a header of every answer; prompts beyond it are refused in the words on which clients
compact. A name that nobody knows is ignored, and the log says so once.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from aiohttp import web

from luce.supervisor.http.app_context import context_of
from luce.supervisor.http.keys.key_ring import window_of

WINDOW_HEADER = "luce-context-window"
_WINDOW = web.RequestKey("context_window", int)
"""Of a request: the tokens that a prompt and its answer may have."""

_LARGE_WINDOW = re.compile(r"context-(\d{1,6})m-[\d-]+")
_TELLS_FULL_WINDOW = re.compile(r"model-context-window-exceeded-[\d-]+")
_NOTHING_TO_DO = re.compile(
    r"(?:claude-code|oauth|context-management|interleaved-thinking|fine-grained-tool-streaming|structured-outputs|effort"
    r"|prompt-caching(?:-scope)?|extended-cache-ttl|token-counting|token-efficient-tools|output-128k"
    r"|mid-conversation-(?:system|system-clear-at|tool-changes))-[\d-]+"
)
"""What they ask for is done without being asked, or by a field of the body."""

_KNOWN = (_LARGE_WINDOW, _TELLS_FULL_WINDOW, _NOTHING_TO_DO)
_MAX_SAID = 256
_log = logging.getLogger("luce.http.anthropic")
_said: set[str] = set()


def read_betas(request: web.Request) -> int | None:
    """The context, for a client that knows the word for an answer that fills it; None for others: they are told that
    the answer has reached its limit. REQUIRES: the body has been read, which chooses the model."""
    names = [name.strip() for line in request.headers.getall("anthropic-beta", ()) for name in line.split(",")]
    n_ctx = window_of(request, context_of(request).supervisor.n_ctx)
    if n_ctx is not None:
        request[_WINDOW] = n_ctx
    for name in names:
        if (wanted := _LARGE_WINDOW.fullmatch(name)) is not None:
            _note_window(name, int(wanted[1]) * 1_000_000, n_ctx)
    unknown = [name[:64] for name in names if name and not any(known.fullmatch(name) for known in _KNOWN)]
    if new := _unsaid(unknown):
        _log.info("anthropic-beta: unknown names without effect: %s", ", ".join(map(repr, new)))
    return n_ctx if any(map(_TELLS_FULL_WINDOW.fullmatch, names)) else None


async def tell_window(request: web.Request, response: web.StreamResponse) -> None:
    """on_response_prepare: in errors and streams too."""
    if _WINDOW in request:
        response.headers[WINDOW_HEADER] = str(request[_WINDOW])


def _note_window(name: str, n_wanted: int, n_ctx: int | None) -> None:
    if n_ctx is not None and n_ctx < n_wanted and _unsaid([name[:64]]):
        _log.info(
            "anthropic-beta %s: a client asks for a context of %s tokens. This server has %s, and says so in the header"
            " %s. For Claude Code set CLAUDE_CODE_MAX_CONTEXT_TOKENS=%d",
            name[:64], f"{n_wanted:,}", f"{n_ctx:,}", WINDOW_HEADER, n_ctx,
        )  # fmt: skip


def _unsaid(names: Sequence[str]) -> Sequence[str]:
    """Those that the log has not told of; it has after this."""
    new = [name for name in dict.fromkeys(names) if name not in _said][: _MAX_SAID - len(_said)]
    _said.update(new)
    return new
