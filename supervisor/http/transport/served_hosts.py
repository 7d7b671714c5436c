"""Under which names the server answers: those that mean this machine, and those that its owner allows.

A page whose name has been pointed at this machine (DNS rebinding) is of our own origin to its browser, and could read
everything; only the name in `Host` tells. The number of an address cannot be pointed elsewhere. Pure but for the
machine's name.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.settings import ServeSettings

_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{0,5})?")
_ABSOLUTE_FORM = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")


class ServedHosts:
    def __init__(self, names: Sequence[str], *, beyond_loopback: bool) -> None:
        """`beyond_loopback`: other machines reach the server, by any of this machine's addresses."""
        self._names = frozenset(map(_plain, names))
        self._beyond_loopback = beyond_loopback

    @staticmethod
    def of(settings: ServeSettings) -> ServedHosts:
        """What is served at a Unix socket is under any name: no browser reaches it."""
        if settings.socket_path is not None:
            return ServedHosts(["*"], beyond_loopback=True)
        if is_loopback(settings.host):
            return ServedHosts(settings.allowed_hosts, beyond_loopback=False)
        name = socket.gethostname()
        own = [settings.host, name, name.partition(".")[0], f"{name.partition('.')[0]}.local"]
        return ServedHosts([*own, *settings.allowed_hosts], beyond_loopback=True)

    def serves(self, authority: str) -> bool:
        """Whether what stands in `Host`, with or without a port, is one of the names."""
        match = _AUTHORITY.fullmatch(authority)
        if match is None:
            return False
        name = _plain(match[1])
        if "*" in self._names or name in self._names:
            return True
        return is_loopback(name) or name.endswith(".localhost") or (self._beyond_loopback and _is_address(name))


SERVED_HOSTS = web.AppKey("served_hosts", ServedHosts)
"""Set by a server of ours; where the application is mounted in another program, that program sees to names."""


@web.middleware
async def check_host(request: web.Request, handler: Handler) -> web.StreamResponse:
    hosts = request.app.get(SERVED_HOSTS)
    if hosts is not None:
        for authority in _authorities(request):
            if not hosts.serves(authority):
                text = (
                    f"this server is not known as {authority[:100]!r}: use this machine's own name or address, or start"
                    " it with --allowed-host NAME"
                )
                raise ApiError(ErrorKind.FORBIDDEN, "host", text)
    return await handler(request)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. Names other than localhost are not asked for their addresses."""
    name = _plain(host)
    if name in {"localhost", "ip6-localhost"}:
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _authorities(request: web.Request) -> list[str]:
    """In all places where a request can name its host. Raises ApiError where it leaves the name out or in doubt;
    clients of HTTP/1.0 may leave it out, and no browser is one."""
    given = request.headers.getall(hdrs.HOST, [])
    if len(given) > 1 or (not given and request.version >= (1, 1)):
        raise ApiError(ErrorKind.INVALID, "host", "a request has one Host header")
    target = _ABSOLUTE_FORM.match(request.raw_path)
    return given if target is None else [*given, target[1]]


def _plain(name: str) -> str:
    return name.lower().strip("[]").removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
