"""Commands without the time that Python takes to import them: forked from a process that has, each with arguments,
environment and streams of its own.

All else is as in a shell: a process, its exit status, the signal that ends it. It must not know what is tested. What
tells how a command is started (its imports, Python's own variables) starts it anew.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

ENTRIES = {"luce": "luce.supervisor.cli.app", "luce-daemon": "luce.supervisor.cli.daemon"}
IMPORTED = (
    *ENTRIES.values(),
    *(f"luce.supervisor.cli.{name}" for name in ("run", "pipeline.pipe", "serve", "inspect", "pipeline.tokens")),
    "luce.supervisor.cli.compress",
    "luce.supervisor.http.app",
    "luce.supervisor.http.server",
)
HEADER_BYTES = 4
AT_START = ("PYTHON", "LC_", "LANG")
"""How the names of variables begin that Python reads but once."""


def can_be_forked(environment: Mapping[str, str]) -> bool:
    """Whether a Python that was started in this process's environment would be no other in that one."""
    names = {name for name in environment.keys() | os.environ.keys() if name.startswith(AT_START)}
    return all(environment.get(name) == os.environ.get(name) for name in names)


class ForkedCommands:
    """One at a time."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # whoever forks has one thread
            )

    def close(self) -> None:
        self._socket.close()
        self._server.wait()

    def run(
        self, command: Sequence[str], data: bytes | None, environment: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[bytes]:
        """What subprocess.run gives. Without `data` there is nothing to read."""
        stdin, fed = (os.open(os.devnull, os.O_RDONLY), None) if data is None else os.pipe()
        out, stdout = os.pipe()
        err, stderr = os.pipe()
        request = json.dumps({"command": command, "environment": dict(environment), "folder": str(Path.cwd())}).encode()
        socket.send_fds(self._socket, [len(request).to_bytes(HEADER_BYTES)], [stdin, stdout, stderr])
        self._socket.sendall(request)
        for fd in (stdin, stdout, stderr):
            os.close(fd)
        self._socket.settimeout(timeout_s)
        pid = _number(self._socket)
        with ThreadPoolExecutor(3) as streams:
            if fed is not None:
                streams.submit(_write, os.fdopen(fed, "wb"), data)
            told = [streams.submit(_read, os.fdopen(fd, "rb")) for fd in (out, err)]
            try:
                status = _number(self._socket)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                self._socket.settimeout(None)
                _number(self._socket)  # is told of that end, too
                raise
        return subprocess.CompletedProcess(list(command), status, told[0].result(), told[1].result())


def _write(stream: IO[bytes], data: bytes | None) -> None:
    with suppress(BrokenPipeError), stream:
        stream.write(data or b"")


def _read(stream: IO[bytes]) -> bytes:
    with stream:
        return stream.read()


def _number(connection: socket.socket) -> int:
    data = connection.recv(HEADER_BYTES, socket.MSG_WAITALL)
    assert len(data) == HEADER_BYTES, "the process that forks commands is gone"
    return int.from_bytes(data, signed=True)


def serve(connection: socket.socket) -> None:
    """Forks a command for each request, and tells its process and how that ended; returns in the command itself."""
    for module in IMPORTED:
        importlib.import_module(module)
    while True:
        header, fds, _, _ = socket.recv_fds(connection, HEADER_BYTES, 3)
        if not header:
            os._exit(0)
        request = json.loads(connection.recv(int.from_bytes(header), socket.MSG_WAITALL))
        pid = os.fork()
        if pid == 0:
            connection.close()
            for target, fd in enumerate(fds):
                os.dup2(fd, target)
                os.close(fd)
            os.environ.clear()
            os.environ.update(request["environment"])
            os.chdir(request["folder"])
            sys.argv = request["command"]
            return
        for fd in fds:
            os.close(fd)
        connection.sendall(pid.to_bytes(HEADER_BYTES, signed=True))
        _, status = os.waitpid(pid, 0)
        connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(HEADER_BYTES, signed=True))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
    importlib.import_module(ENTRIES[Path(sys.argv[0]).name]).main()
