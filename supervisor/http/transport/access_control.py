"""Who may use the server: API keys, and what a web page of somebody else's may do with it (nothing, unless asked for).

/health is open without a key: it says no more than whether the server can answer, and those that watch over it have no
keys. Everything else needs one if there are any.

A page in a browser can send a simple POST to any address without asking; browsers mark it with Sec-Fetch-Site, which
no page can forge, so that it is refused here unless its origin is one of `cors_origins`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler

from luce.supervisor.http.admin.status_page import is_page_wanted, page_response
from luce.supervisor.http.app_context import APP_CONTEXT, CLIENT, REQUEST_ID
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.settings import ServeSettings

_OPEN_PATHS = ("/health", "/v1/health")
_EXPOSED = "x-request-id, request-id, retry-after"
_METHODS = "GET, POST, DELETE, OPTIONS"


class ApiKeys:
    """Keys by their digests, so that comparing them takes the same time whatever is given, its length too."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = tuple(_digest(key) for key in keys)

    def client_of(self, headers: Sequence[str]) -> str | None:
        """The name of the client whose key is among these; nothing, if none is."""
        found: bytes | None = None
        for given in headers:
            digest = _digest(given)
            for known in self._digests:
                if hmac.compare_digest(known, digest):
                    found = known
        return None if found is None else found.hex()[:16]

    def __bool__(self) -> bool:
        return bool(self._digests)


API_KEYS = web.AppKey("api_keys", ApiKeys)


@web.middleware
async def check_access(request: web.Request, handler: Handler) -> web.StreamResponse:
    settings = request.app[APP_CONTEXT].settings
    origin = request.headers.get("Origin")
    if origin is not None and request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
        if allowed_origin(settings.cors_origins, origin) is None:
            raise ApiError(ErrorKind.FORBIDDEN, "origin", "pages of this origin may not use this server")
        return _preflight(request)
    if _is_by_foreign_page(request) and allowed_origin(settings.cors_origins, origin or "null") is None:
        raise ApiError(ErrorKind.FORBIDDEN, "origin", "pages of this origin may not use this server")
    keys = request.app[API_KEYS]
    if keys and not _is_open(request):
        client = keys.client_of(_keys_given(request))
        if client is None:
            if is_page_wanted(request):
                return page_response(ErrorKind.UNAUTHENTICATED.status)  # people are asked for their key
            text = "this server wants an API key, in `Authorization: Bearer KEY` or `x-api-key: KEY`"
            raise ApiError(ErrorKind.UNAUTHENTICATED, "invalid_api_key", text)
        request[CLIENT] = client
    return await handler(request)


@web.middleware
async def refuse_foreign_names(request: web.Request, handler: Handler) -> web.StreamResponse:
    """For a server that only this machine reaches and that has no keys: a page in a browser gets nothing under a name
    that somebody else has pointed at this machine, though to the browser it is the page's own (DNS rebinding). Programs
    say nothing of where they were sent from, and may use any name."""
    name = _name_of(f"//{request.host}")
    if "Sec-Fetch-Site" in request.headers and not _is_known_name(name, request.app[APP_CONTEXT].settings):
        text = f"pages may not use this server as {name[:100]!r}: name an API key, or allow their origin"
        raise ApiError(ErrorKind.FORBIDDEN, "host", text)
    return await handler(request)


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """on_response_prepare: what every answer carries, streams and errors too."""
    headers = response.headers
    if REQUEST_ID in request:
        headers["x-request-id"] = headers["request-id"] = request[REQUEST_ID]
    headers["Server"] = "luce"
    headers["X-Content-Type-Options"] = "nosniff"
    origin = request.headers.get("Origin")
    origins = request.app[APP_CONTEXT].settings.cors_origins
    if origin is None or not origins:
        return
    allowed = allowed_origin(origins, origin)
    headers.add("Vary", "Origin")
    if allowed is not None:
        headers["Access-Control-Allow-Origin"] = allowed
        headers["Access-Control-Expose-Headers"] = _EXPOSED


def allowed_origin(origins: Sequence[str], origin: str) -> str | None:
    """What to answer to a page of this origin: itself, as some clients look for that; nothing, if it may not read
    answers."""
    return origin if "*" in origins or origin in origins else None


def _preflight(request: web.Request) -> web.Response:
    # Echoed, because `*` does not stand for Authorization; what is no list of names is not repeated.
    asked = request.headers.get("Access-Control-Request-Headers", "")
    is_list = all(character.isalnum() or character in "-_, " for character in asked)
    return web.Response(  # 200: there are proxies and old browsers that take no 204 for a yes
        headers={
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Allow-Headers": asked if asked and is_list else "authorization, x-api-key, content-type",
            "Access-Control-Max-Age": "600",
        },
    )


def _is_by_foreign_page(request: web.Request) -> bool:
    """Links and images are GET, which changes nothing here; what they bring cannot be read."""
    return request.method not in {"GET", "HEAD"} and request.headers.get("Sec-Fetch-Site") in {
        "cross-site",
        "same-site",
    }


def _name_of(address: str) -> str:
    """The host in a URL, in small letters; empty if there is none."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _is_known_name(name: str, settings: ServeSettings) -> bool:
    if name in {settings.host, "localhost"} or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return any(origin == "*" or _name_of(origin) == name for origin in settings.cors_origins)
    return True


def _is_open(request: web.Request) -> bool:
    resource = request.match_info.route.resource
    return resource is not None and resource.canonical.endswith(_OPEN_PATHS) and request.method in {"GET", "HEAD"}


def _keys_given(request: web.Request) -> list[str]:
    keys = [*request.headers.getall("x-api-key", ())]
    for value in request.headers.getall("Authorization", ()):
        scheme, _, credentials = value.partition(" ")
        if scheme.lower() == "bearer":
            keys.append(credentials.strip())
        elif scheme.lower() == "basic":  # curl -u :KEY, Prometheus' basic_auth: the user's name does not matter
            try:
                text = base64.b64decode(credentials.strip(), validate=True).decode()
            except (binascii.Error, ValueError):
                continue
            keys.append(text.partition(":")[2])
    return keys


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
