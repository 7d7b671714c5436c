"""What is remembered, as a tree of texts, and what people do with it: keep, forget, park. For keys of scope admin.

Each run of a tree is shown with its first words, so whoever sees it may see what others have said. Must not know how
the tree is kept.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, StrictBool, StrictInt, StrictStr

from luce.supervisor.http.admin.openapi import Operation, listed, record
from luce.supervisor.http.app_context import context_of
from luce.supervisor.http.request_records import RequestRecords
from luce.supervisor.http.transport.body import read_body
from luce.supervisor.http.window.endpoints import REQUEST_RECORDS
from luce.supervisor.scheduling.remembered_texts import TextListing, TextRun
from luce.supervisor.text import TextModel

_DONE = record({"ok": {"const": True}})


class TextBody(BaseModel):
    """`engine`: its number, from 0; `page`: the name of the run's last page, as /memory.json tells it."""

    model_config = ConfigDict(extra="forbid")

    engine: StrictInt
    page: StrictStr


class HoldBody(TextBody):
    on: StrictBool = True


class ParkBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    on: StrictBool = True


OPERATIONS = (
    Operation("get", "/memory.json", "What is remembered, as a tree", response=record({"engines": listed({})})),
    Operation("post", "/memory/hold", "Keep a text from leaving memory, or no longer", HoldBody, _DONE),
    Operation("post", "/memory/forget", "Forget a text and all that goes on from it", TextBody, _DONE),
    Operation(
        "post", "/memory/park", "Give the device's memory back, or take it again", ParkBody, _DONE, needs_body=False
    ),
)


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get("/memory.json", get_memory)
    router.add_post("/memory/hold", post_hold)
    router.add_post("/memory/forget", post_forget)
    router.add_post("/memory/park", post_park)


async def get_memory(request: web.Request) -> web.Response:
    context = context_of(request)
    engines = context.supervisor.status().engines
    listings = await context.supervisor.texts()
    read_s = seconds_a_token(request.app[REQUEST_RECORDS])
    told = [
        {
            "name": engine.name,
            "parked": engine.is_parked,
            "page_tokens": None if engine.info is None else engine.info.page_tokens,
            "page_bytes": None if engine.info is None else engine.info.page_bytes,
            "total": 0 if listing is None else listing.n_runs,
            "short": 0 if listing is None else listing.n_short,
            "runs": await asyncio.to_thread(_runs, listing, context.text),
        }
        for engine, listing in zip(engines, listings, strict=True)
    ]
    return web.json_response({"engines": told, "read_s": read_s}, headers={"Cache-Control": "no-store"})


async def post_hold(request: web.Request) -> web.Response:
    body = await read_body(request, HoldBody, chooses=False)
    await context_of(request).supervisor.hold_text(body.engine, body.page, on=body.on)
    return web.json_response({"ok": True})


async def post_forget(request: web.Request) -> web.Response:
    body = await read_body(request, TextBody, chooses=False)
    await context_of(request).supervisor.forget_text(body.engine, body.page)
    return web.json_response({"ok": True})


async def post_park(request: web.Request) -> web.Response:
    body = await read_body(request, ParkBody, chooses=False)
    supervisor = context_of(request).supervisor
    await (supervisor.park() if body.on else supervisor.unpark())
    return web.json_response({"ok": True})


def seconds_a_token(records: RequestRecords) -> float | None:
    """What reading a token has cost lately; None: nothing was read."""
    usages = [shown.usage for shown in records.newest_first() if shown.usage is not None]
    n_read = sum(usage.n_seen - usage.n_cached for usage in usages)
    return sum(usage.prefill_s for usage in usages) / n_read if n_read > 0 else None


def _runs(listing: TextListing | None, text: TextModel) -> list[dict[str, Any]]:
    return [] if listing is None else [_run(run, text) for run in listing.runs]


def _run(run: TextRun, text: TextModel) -> dict[str, Any]:
    shown = asdict(run)
    known = [token for token in shown.pop("first_tokens") if token < text.n_vocab]  # others stand for images
    words = text.detokenize(known, unparse_special=False).decode("utf-8", "replace")
    return shown | {"words": words}
