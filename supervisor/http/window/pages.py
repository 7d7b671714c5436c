"""The page at `/` and the files beside it, as they lie in the package: scripts, styles, the libraries it carries.

They hold nothing that needs a key, and load nothing from elsewhere: the policy that goes with them lets only files of
this server run. It must not know what the page shows.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from aiohttp import hdrs, web

from luce.supervisor.http.admin.openapi import Operation

OPERATIONS: tuple[Operation, ...] = ()  # for people

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class _File:
    content_type: str
    plain: bytes
    packed: bytes
    tag: str


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get("/", get_page)
    router.add_get("/window/{path:.+}", get_file)


def set_up(app: web.Application) -> None:
    """The files are packed before somebody waits for them."""

    async def pack(_: web.Application) -> None:
        await asyncio.to_thread(_files)

    app.on_startup.append(pack)


async def get_page(request: web.Request) -> web.StreamResponse:
    return _response(request, _files()["index.html"])


async def get_file(request: web.Request) -> web.StreamResponse:
    file = _files().get(request.match_info["path"])
    if file is None:
        raise web.HTTPNotFound
    return _response(request, file)


def is_page_wanted(request: web.Request) -> bool:
    """Whether a browser asks for the page itself."""
    return request.match_info.handler is get_page and "text/html" in request.headers.get("Accept", "")


def is_part_of_page(request: web.Request) -> bool:
    """Whether it is a file beside the page, which is the same for everybody."""
    return request.match_info.handler is get_file


def page_response(request: web.Request) -> web.Response:
    """For those without a key: the page asks for one, and sends it in a header with each request. An address with a key
    in it would be kept by histories and logs, so `?key=` is none."""
    response = _response(request, _files()["index.html"], status=401)
    response.headers["WWW-Authenticate"] = "Bearer"
    return response


@cache
def packed_bytes() -> int:
    """What all files take on the wire."""
    return sum(len(file.packed) for file in _files().values())


def _response(request: web.Request, file: _File, status: int = 200) -> web.Response:
    headers = {
        "Content-Security-Policy": _POLICY,
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",  # kept, but asked for anew: another version of the server has another page
        "Vary": "Accept-Encoding",
        "ETag": file.tag,
    }
    if status == 200 and file.tag in request.headers.get(hdrs.IF_NONE_MATCH, ""):
        return web.Response(status=304, headers=headers)
    body = file.plain
    if "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, ""):
        body = file.packed
        headers["Content-Encoding"] = "gzip"
    return web.Response(status=status, body=body, headers=headers, content_type=file.content_type, charset="utf-8")


@cache
def _files() -> Mapping[str, _File]:
    """By their paths: what is not among them is not looked for."""
    return dict(_walk(files("luce.supervisor.http.window").joinpath("static"), ""))


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, _File]]:
    for entry in folder.iterdir():
        path = prefix + entry.name
        if entry.is_dir():
            yield from _walk(entry, path + "/")
        elif (content_type := _TYPES.get(path[path.rfind(".") :])) is not None:
            plain = entry.read_bytes()
            tag = f'"{hashlib.sha256(plain).hexdigest()[:20]}"'
            yield path, _File(content_type, plain, gzip.compress(plain, 9, mtime=0), tag)
