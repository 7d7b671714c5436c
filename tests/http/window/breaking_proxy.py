"""A proxy before a server whose connections break when a test wants them to. Knows no HTTP."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class BreakingProxy:
    def __init__(self, port: int) -> None:
        """`port`: the server's."""
        self._to = port
        self._sockets: set[socket.socket] = set()
        self._listening = self._listen(0)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def down(self) -> None:
        """All connections break, and nobody listens."""
        for one in (self._listening, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._sockets.clear()

    def up(self) -> None:
        self._listening = self._listen(int(self.url.rpartition(":")[2]))

    def _listen(self, port: int) -> socket.socket:
        listening = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(listening,), daemon=True).start()
        return listening

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return  # it is down
            server = socket.create_connection(("127.0.0.1", self._to))
            self._sockets |= {client, server}
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=_copy, args=(one, other), daemon=True).start()


def _copy(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while piece := one.recv(1 << 16):
            other.sendall(piece)
    with suppress(OSError):
        other.shutdown(socket.SHUT_WR)


@contextmanager
def breaking_proxy(url: str) -> Iterator[BreakingProxy]:
    proxy = BreakingProxy(int(url.rpartition(":")[2]))
    try:
        yield proxy
    finally:
        proxy.down()
