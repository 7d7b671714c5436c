"""POST /slots/{id}: what a lane computed last goes into a file of one folder and comes back, as with llama-server.

Names come from clients, so that a file is never looked for anywhere else. Must not know what is in a file, nor how
answers are made.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from aiohttp import web
from pydantic import BaseModel, ConfigDict, StrictStr

from luce.supervisor.http.admin.openapi import COUNT, TEXT, Operation, record
from luce.supervisor.http.app_context import AppContext, context_of
from luce.supervisor.http.errors import ApiError, ErrorKind, api_error
from luce.supervisor.http.transport.body import read_body
from luce.supervisor.requests import RequestError

MAX_NAME_BYTES = 200  # the engine writes beside it first, under a longer name; file systems take 255


class SlotFileBody(BaseModel):
    """`filename`: a name within the folder that --slot-save-path names."""

    model_config = ConfigDict(extra="allow")

    filename: StrictStr


_FILED = {"id_slot": COUNT, "filename": TEXT}
_TIMINGS = {"type": "object", "additionalProperties": {"type": "number"}}
_DONE = {
    "anyOf": [
        record({**_FILED, "n_saved": COUNT, "n_written": COUNT, "timings": _TIMINGS}),
        record({**_FILED, "n_restored": COUNT, "n_read": COUNT, "timings": _TIMINGS}),
        record({"id_slot": COUNT, "n_erased": COUNT}),
    ]
}

OPERATIONS = (
    Operation(
        method="post",
        path="/slots/{id}",
        summary="Save what a lane computed last as a file, restore such a file, or forget it (llama-server)",
        request=SlotFileBody,
        needs_body=False,  # erase takes none
        query={"action": {"enum": ["save", "restore", "erase"]}},
        response=_DONE,
    ),
)


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_post("/slots/{id}", post_slot)


async def post_slot(request: web.Request) -> web.Response:
    context = context_of(request)
    lane = _lane(context, request.match_info["id"])
    match request.query.get("action"):
        case "save":
            path = _path(context, (await read_body(request, SlotFileBody, chooses=False)).filename)
            return web.json_response(await _save(context, lane, path))
        case "restore":
            path = _path(context, (await read_body(request, SlotFileBody, chooses=False)).filename)
            return web.json_response(await _restore(context, lane, path))
        case "erase":
            _folder(context)
            return web.json_response({"id_slot": lane, "n_erased": context.supervisor.forget_lane(lane)})
    raise _invalid("action", "Invalid action: it must be save, restore or erase.")


async def _save(context: AppContext, lane: int, path: Path) -> dict[str, object]:
    tokens = context.supervisor.lane_text(lane)
    if not tokens:
        raise _invalid("id", f"Slot {lane} has computed nothing that could be saved.")
    if await asyncio.to_thread(path.is_symlink):
        raise _invalid("filename", "Invalid filename: it is a link to another file.")
    began_s = time.monotonic()
    try:
        saved = await context.supervisor.save(tokens, path)
    except RequestError as error:
        raise api_error(error) from error
    return {
        "id_slot": lane,
        "filename": path.name,
        "n_saved": saved.n_tokens,
        "n_written": saved.n_bytes,
        "timings": {"save_ms": _since_ms(began_s)},
    }


async def _restore(context: AppContext, lane: int, path: Path) -> dict[str, object]:
    began_s = time.monotonic()
    n_bytes = await asyncio.to_thread(_size_within, path)
    try:
        n_tokens = await context.supervisor.load(path)
    except RequestError as error:
        raise api_error(error) from error
    return {
        "id_slot": lane,
        "filename": path.name,
        "n_restored": n_tokens,
        "n_read": n_bytes,
        "timings": {"restore_ms": _since_ms(began_s)},
    }


def _lane(context: AppContext, text: str) -> int:
    n_lanes = sum(engine.lanes for engine in context.supervisor.status().engines)
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and int(text) < n_lanes):
        raise _invalid("id", f"Invalid slot ID: it must be from 0 to {n_lanes - 1}.")
    return int(text)


def _folder(context: AppContext) -> Path:
    folder = context.settings.slot_save_path
    if folder is None:
        text = "This server does not save slots. Start it with --slot-save-path."
        raise ApiError(ErrorKind.UNSUPPORTED, "not_supported", text)
    if context.settings.cache_isolation != "off":
        text = "Slots cannot be saved while clients are kept apart (--cache-isolation key): anybody could restore them."
        raise ApiError(ErrorKind.UNSUPPORTED, "not_supported", text)
    return folder


def _path(context: AppContext, name: str) -> Path:
    """A name, never a way to somewhere else."""
    folder = _folder(context)
    is_plain = name.isprintable() and not set(name) & set("/\\:") and name == name.strip() and not name.startswith(".")
    if not is_plain or not 0 < len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES:
        raise _invalid("filename", "Invalid filename: it must be a plain name, without a folder.")
    return folder / name


def _size_within(path: Path) -> int:
    """Raises ApiError for what is no file of the folder itself: a link could lead out of it."""
    try:
        if path.is_file() and not path.is_symlink():
            return path.stat().st_size
    except OSError:
        pass
    raise _invalid("filename", f"There is no file {path.name!r} to restore.")


def _invalid(param: str, text: str) -> ApiError:
    return ApiError(ErrorKind.INVALID, "invalid_value", text, param=param)


def _since_ms(began_s: float) -> float:
    return round((time.monotonic() - began_s) * 1000, 3)
