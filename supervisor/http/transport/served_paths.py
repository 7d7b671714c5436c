"""Paths that clients put together wrongly: the one that is meant, or the nearest that there is. Knows no dialect."""

from __future__ import annotations

import re
from difflib import get_close_matches

from aiohttp import web
from yarl import URL

_SLASHES = re.compile("//+")
_LONGEST = 100  # characters of a path that others are compared with


def with_served_path(request: web.BaseRequest) -> web.BaseRequest:
    path = request.rel_url.raw_path
    served = served_path(path)
    if served == path:
        return request
    return request.clone(rel_url=URL.build(path=served, query_string=request.rel_url.raw_query_string, encoded=True))


def served_path(path: str) -> str:
    """Without doubled and last slashes, and with one `/v1`: base addresses are given with and without it."""
    path = _SLASHES.sub("/", path)
    while path.startswith("/v1/v1/"):
        path = path.removeprefix("/v1")
    return path if path == "/" else path.removesuffix("/")


def nearest_path(path: str, router: web.UrlDispatcher) -> str | None:
    """Of those that the application has: one that is all but the same, one that it begins or ends with, or one that is
    spelled alike."""
    wanted = path[:_LONGEST].lower()
    paths = sorted({resource.canonical for resource in router.resources()} - {"/"})
    inside = [each for each in paths if wanted.startswith(f"{each}/") or wanted.endswith(each)]
    found = (
        get_close_matches(wanted, paths, 1, 0.9) or sorted(inside, key=len)[-1:] or get_close_matches(wanted, paths, 1)
    )
    return found[0] if found else None
