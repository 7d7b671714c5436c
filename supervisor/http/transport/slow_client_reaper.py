"""Connections whose readers stay away while something waits for them: closed, whatever it is that they do not read.

A stream of events sees to its own reader; an answer that is sent whole, an error, or what is left when a connection is
closed, waits in the transport for as long as the peer pleases. It must not know requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from aiohttp import web


@dataclass(slots=True)
class _Waiting:
    n_bytes: int
    since_s: float


class SlowClientReaper:
    """Looks at the connections of one server from time to time. Cancel the task that runs it."""

    def __init__(self, server: web.Server, patience_s: float) -> None:
        self._server = server
        self._patience_s = patience_s
        self._waiting: dict[asyncio.Transport, _Waiting] = {}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._patience_s / 4)
            transports = [handler.transport for handler in self._server.connections]
            for transport in self.look(transports, loop.time()):
                transport.abort()

    def look(self, transports: Iterable[asyncio.Transport | None], now_s: float) -> list[asyncio.Transport]:
        """Those whose readers have taken nothing for too long. What has been seen waiting is looked at until it has
        gone, also when its connection is no longer among `transports`: it is being closed then."""
        given_up = []
        seen = {transport for transport in transports if transport is not None} | set(self._waiting)
        for transport in seen:
            n_bytes = transport.get_write_buffer_size()
            known = self._waiting.get(transport)
            if n_bytes == 0:
                self._waiting.pop(transport, None)
            elif known is None or known.n_bytes != n_bytes:
                self._waiting[transport] = _Waiting(n_bytes, now_s)
            elif now_s - known.since_s > self._patience_s:
                del self._waiting[transport]
                given_up.append(transport)
        return given_up
