"""ServerProcess: an HTTP server in a process of its own, ready when /health answers 200. Must not know whose it is."""

from __future__ import annotations

import http.client
import socket
import subprocess
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

START_DEADLINE_S = 300.0
END_DEADLINE_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """Use as a context manager: leaving it ends the server and reaps it."""

    def __init__(self, command: Sequence[str], port: int) -> None:
        """`command` makes it listen on `port` of this machine."""
        self._port = port
        self._name = " ".join(command[:2])
        self.url = f"http://127.0.0.1:{port}"
        self._child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self) -> Self:
        until_s = time.monotonic() + START_DEADLINE_S
        while not self._is_healthy():
            if self._child.poll() is not None:
                raise RuntimeError(f"{self._name} ended with status {self._child.returncode} before it was ready")
            if time.monotonic() > until_s:
                self._child.kill()
                raise TimeoutError(f"{self._name} was not ready in time")
            time.sleep(0.1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.terminate()
        try:
            self._child.wait(END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.client.OK
        except OSError:
            return False
        finally:
            connection.close()
