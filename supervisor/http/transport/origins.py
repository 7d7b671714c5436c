"""What a web page of somebody else's may do with the server: nothing, unless its origin is one of `cors_origins`.

A page in a browser can send simple requests to any address without asking: the browser only hides the answer, and what
was asked for is computed. Browsers mark requests with the page's origin and with where it stands to ours; no page can
forge these. Following a link to a page of ours is no such request.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from luce.supervisor.http.app_context import context_of
from luce.supervisor.http.errors import ApiError, ErrorKind

_EXPOSED = "x-request-id, request-id, retry-after, luce-context-window, x-luce-schema-notes"
_METHODS = "GET, POST, DELETE, OPTIONS"
_DEFAULT_PORTS = {"http": 80, "https": 443}


@web.middleware
async def check_origin(request: web.Request, handler: Handler) -> web.StreamResponse:
    origins = context_of(request).settings.cors_origins
    origin = request.headers.get(hdrs.ORIGIN)
    is_allowed = allowed_origin(origins, origin or "null") is not None
    if not is_allowed and _is_by_foreign_page(request, origin):
        text = (
            f"pages of this origin ({(origin or 'unknown')[:100]}) may not use this server: start it with"
            " --cors-origin ORIGIN to let them"
        )
        raise ApiError(ErrorKind.FORBIDDEN, "origin", text)
    asks_ahead = request.method == hdrs.METH_OPTIONS and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers
    if origin is not None and asks_ahead:
        return _preflight(request)
    return await handler(request)


def add_origin_headers(request: web.Request, response: web.StreamResponse) -> None:
    origin = request.headers.get(hdrs.ORIGIN)
    origins = context_of(request).settings.cors_origins
    if origin is None or not origins:
        return
    allowed = allowed_origin(origins, origin)
    response.headers.add(hdrs.VARY, "Origin")
    if allowed is not None:
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = allowed
        response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = _EXPOSED


def allowed_origin(origins: Sequence[str], origin: str) -> str | None:
    """What to answer to a page of this origin: itself, as some clients look for that; nothing, if it may not read
    answers."""
    return origin if "*" in origins or origin in origins else None


def _is_by_foreign_page(request: web.Request, origin: str | None) -> bool:
    headers = request.headers
    if origin is not None and not _is_own(origin, headers.get(hdrs.HOST, "")):
        return True
    if headers.get("Sec-Fetch-Site") not in {"cross-site", "same-site"}:
        return False
    follows_link = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
    return not (follows_link and request.method in {hdrs.METH_GET, hdrs.METH_HEAD})


def _is_own(origin: str, host: str) -> bool:
    """Whether it is the origin of the pages that the server itself sends; a proxy may have added TLS."""
    try:
        page, own = urlsplit(origin), urlsplit(f"//{host}")
        ports = (page.port, own.port)
    except ValueError:
        return False
    default = _DEFAULT_PORTS.get(page.scheme)
    if default is None or "@" in page.netloc or origin != f"{page.scheme}://{page.netloc}":
        return False  # an origin names no user and no path
    return page.hostname == own.hostname and len({port or default for port in ports}) == 1


def _preflight(request: web.Request) -> web.Response:
    # Echoed, because `*` does not stand for Authorization; what is no list of names is not repeated.
    asked = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "")
    is_list = all(character.isalnum() or character in "-_, " for character in asked)
    headers: dict[str, str] = {
        hdrs.ACCESS_CONTROL_ALLOW_METHODS: _METHODS,
        hdrs.ACCESS_CONTROL_ALLOW_HEADERS: asked if asked and is_list else "authorization, x-api-key, content-type",
        hdrs.ACCESS_CONTROL_MAX_AGE: "600",
    }
    if request.headers.get("Access-Control-Request-Private-Network") == "true":
        headers["Access-Control-Allow-Private-Network"] = "true"  # a public page may ask a server in its network
    return web.Response(headers=headers)  # 200: there are proxies and old browsers that take no 204 for a yes
