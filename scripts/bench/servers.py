"""HTTP servers in processes of their own, ready when /health answers 200: llama.cpp's, the other side of comparisons,
and ours. They must not know what is compared.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

START_DEADLINE_S = 300.0
END_DEADLINE_S = 60.0
REQUEST_DEADLINE_S = 600.0
_POLL_S = 0.02
_COMPLETION = "/completion"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def processor_s(pid: int) -> float:
    """Seconds of processor time that the process has used, in all its threads."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


class ServerProcess:
    """Use as a context manager: leaving it ends the server and reaps it."""

    def __init__(self, command: Sequence[str], port: int, environment: Mapping[str, str] | None = None) -> None:
        """`command` makes it listen on `port` of this machine. `environment`: beside ours."""
        self._port = port
        self._name = " ".join(command[:2])
        self.url = f"http://127.0.0.1:{port}"
        self._child = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **(environment or {})}
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    def __enter__(self) -> Self:
        until_s = time.monotonic() + START_DEADLINE_S
        while not self._is_healthy():
            if self._child.poll() is not None:
                raise RuntimeError(f"{self._name} ended with status {self._child.returncode} before it was ready")
            if time.monotonic() > until_s:
                self._child.kill()
                raise TimeoutError(f"{self._name} was not ready in time")
            time.sleep(_POLL_S)
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

    def cpu_s(self) -> float:
        """Of the server's process alone: `luce serve` has its engines for children."""
        return processor_s(self._child.pid)

    def post_to(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The JSON object that is answered as a whole."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=REQUEST_DEADLINE_S)
        try:
            answer: Mapping[str, Any] = json.loads(self._ask(connection, path, body).read())
        finally:
            connection.close()
        return answer

    def _ask(
        self, connection: http.client.HTTPConnection, path: str, body: Mapping[str, Any]
    ) -> http.client.HTTPResponse:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise RuntimeError(f"{self._name} answered {response.status}: {response.read()[:500]!r}")
        return response

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.client.OK
        except OSError:
            return False
        finally:
            connection.close()


class LuceServer(ServerProcess):
    """`luce serve`. Use as a context manager."""

    def __init__(self, model: Path, arguments: Sequence[str], luced: Path | None = None) -> None:
        """`luced`: another one than the package's own."""
        self.model = model
        port = free_port()
        luce = [sys.executable, "-c", "from luce.supervisor.cli.app import main; main()"]
        environment = {} if luced is None else {"LUCE_DAEMON_BINARY": str(luced)}
        command = [*luce, "serve", "--model", str(model), "--port", str(port), *arguments]
        super().__init__(command, port, environment)


@dataclass(frozen=True)
class Completion:
    first_token_s: float
    """From sending the request to the first event with a token."""
    n_computed: int
    """Tokens of the prompt that were read (again)."""
    prompt_s: float
    """The server's own time for them."""
    prompt_cpu_s: float
    """Processor time up to the first event."""
    decode_s: float
    """The server's own time for the tokens after the first one."""
    tokens: list[int]
    decode_cpu_s: float
    """Processor time behind the first event."""
    n_drafted: int
    n_accepted: int


class LlamaServer(ServerProcess):
    """Use as a context manager."""

    def __init__(self, binary: Path, model: Path, *arguments: str) -> None:
        port = free_port()
        super().__init__(
            [str(binary), "--model", str(model), "--host", "127.0.0.1", "--port", str(port), *arguments], port
        )

    def complete(self, prompt: Sequence[int], n: int, *, is_whole: bool = False) -> Completion:
        """One greedy completion of exactly n tokens, streamed. `is_whole`: of at most n; it ends where the model ends
        it."""
        body = {"prompt": list(prompt), "n_predict": n, "temperature": 0, "cache_prompt": True,
                "ignore_eos": not is_whole, "stream": True, "return_tokens": True}  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=REQUEST_DEADLINE_S)
        connection.connect()
        started_s, started_cpu_s = time.monotonic(), self.cpu_s()
        try:
            return self._read(self._ask(connection, _COMPLETION, body), started_s, started_cpu_s)
        finally:
            connection.close()

    def post(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """What /completion answers as a whole."""
        return self.post_to(_COMPLETION, body)

    def _read(self, response: http.client.HTTPResponse, started_s: float, started_cpu_s: float) -> Completion:
        first_token_s = first_cpu_s = 0.0
        tokens: list[int] = []
        timings: dict[str, Any] = {}
        for line in response:
            if not line.startswith(b"data: "):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(f"llama-server: {event['error']}")
            if not first_token_s:
                first_token_s = time.monotonic() - started_s
                first_cpu_s = self.cpu_s()
            tokens += event.get("tokens", [])
            timings = event.get("timings", timings)
        prompt_s, decode_s = (float(timings[f"{part}_ms"]) / 1e3 for part in ("prompt", "predicted"))
        n_drafted, n_accepted = (int(timings.get(name, 0)) for name in ("draft_n", "draft_n_accepted"))
        return Completion(
            first_token_s, int(timings["prompt_n"]), prompt_s, first_cpu_s - started_cpu_s, decode_s, tokens,
            self.cpu_s() - first_cpu_s, n_drafted, n_accepted,
        )  # fmt: skip
