"""What is answered to bytes that are no HTTP: a text of our own. aiohttp's repeats what it could not read, which may be
a key, or a page's script.

It must not know the application.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

UNREADABLE = "The request could not be read: it is not HTTP/1.1, or its headers are malformed or too long.\n"


class _Connection(web.RequestHandler):
    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, HttpProcessingError):
            message = UNREADABLE
        return super().handle_error(request, status, exc, message)


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class Runner(web.AppRunner):
    """An application's, with connections that answer so."""

    __slots__ = ()

    async def _make_server(self) -> web.Server:
        made: Any = await super()._make_server()
        made.__class__ = _Server  # aiohttp has no other way to name a class of connections
        return made  # type: ignore[no-any-return]
