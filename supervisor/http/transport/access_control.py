"""Who may use the server, and for what: API keys, their scopes and how often they may ask, where there are keys.

/health, /livez and /readyz are open without a key: they say no more than whether the server can answer, and those that
watch over it have no keys. Everything else needs one. A key of scope `infer` may do what is listed here, and nothing
that is added elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import time

from aiohttp import web
from aiohttp.typedefs import Handler

from luce.supervisor.http.app_context import CLIENT, REQUEST_ID
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.keys.key_ring import KEY_ACCOUNT, KEY_RING
from luce.supervisor.http.transport.middleware import OTHER_API, api_name
from luce.supervisor.http.transport.origins import add_origin_headers
from luce.supervisor.http.window.pages import is_page_wanted, is_part_of_page, page_response

_OPEN_PATHS = ("/health", "/v1/health", "/livez", "/readyz")
_INFER_PATHS = (
    "/",
    "/apply-template",
    "/clients.json",
    "/detokenize",
    "/models",
    "/models/{model}",
    "/openapi.json",
    "/props",
    "/responses/{response_id}",
    "/responses/{response_id}/cancel",
    "/responses/{response_id}/input_items",
    "/stream",
    "/streams/lookup",
    "/tokenize",
    "/tokenizer_info",
)
"""What a key of scope `infer` may use beside the APIs that answer, by the end of its path."""
_COUNTED_PATHS = ("/apply-template", "/detokenize", "/tokenize")
"""What counts among a key's requests like the APIs that answer: a long text keeps the server busy here too."""


@web.middleware
async def check_access(request: web.Request, handler: Handler) -> web.StreamResponse:
    keys = request.app[KEY_RING]
    if keys and not _is_open(request):
        account = keys.find(_keys_given(request))
        if account is None:
            if is_page_wanted(request):
                return page_response(request)  # people are asked for their key
            text = "this server needs an API key, in `Authorization: Bearer KEY` or `x-api-key: KEY`"
            raise ApiError(ErrorKind.UNAUTHENTICATED, "invalid_api_key", text)
        request[CLIENT] = account.key.client
        request[KEY_ACCOUNT] = account
        if account.key.scope != "admin" and _needs_admin(request):
            text = f"the API key {account.key.name} may ask for answers only: this needs one of scope admin"
            raise ApiError(ErrorKind.FORBIDDEN, "scope", text)
        if api_name(request) != OTHER_API or _ends_with(request, _COUNTED_PATHS):
            account.begin_request(time.monotonic())
    return await handler(request)


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """on_response_prepare: what every answer carries, streams and errors too."""
    headers = response.headers
    if REQUEST_ID in request:
        headers["x-request-id"] = headers["request-id"] = request[REQUEST_ID]
    headers["Server"] = "luce"
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Cross-Origin-Resource-Policy"] = "same-origin"
    add_origin_headers(request, response)


def _needs_admin(request: web.Request) -> bool:
    """What is not there at all may be asked for by anybody."""
    if request.match_info.route.resource is None or api_name(request) != OTHER_API:
        return False
    return not _ends_with(request, _INFER_PATHS)


def _is_open(request: web.Request) -> bool:
    if is_part_of_page(request):
        return True
    return _ends_with(request, _OPEN_PATHS) and request.method in {"GET", "HEAD"}


def _ends_with(request: web.Request, paths: tuple[str, ...]) -> bool:
    resource = request.match_info.route.resource
    return resource is not None and resource.canonical.endswith(paths)


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
