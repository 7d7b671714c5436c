"""LlamaServer: drives llama.cpp's own server as the other side of a comparison: token ids in, the first token's time
and the server's own timings out. It must not know what is compared.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench.server_process import ServerProcess, free_port

REQUEST_DEADLINE_S = 600.0


@dataclass(frozen=True)
class Completion:
    first_token_s: float
    """From sending the request to the first event with a token."""
    n_computed: int
    """Tokens of the prompt that were read (again)."""
    prompt_s: float
    """The server's own time for them."""
    tokens: list[int]


class LlamaServer(ServerProcess):
    """Use as a context manager."""

    def __init__(self, binary: Path, model: Path, *arguments: str) -> None:
        port = free_port()
        super().__init__(
            [str(binary), "--model", str(model), "--host", "127.0.0.1", "--port", str(port), *arguments], port
        )

    def complete(self, prompt: Sequence[int], n: int) -> Completion:
        """One greedy completion of exactly n tokens, streamed."""
        body = json.dumps({
            "prompt": list(prompt), "n_predict": n, "temperature": 0, "cache_prompt": True, "ignore_eos": True,
            "stream": True, "return_tokens": True,
        })  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=REQUEST_DEADLINE_S)
        connection.connect()
        started_s = time.monotonic()
        try:
            connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise RuntimeError(f"llama-server answered {response.status}: {response.read()[:500]!r}")
            return self._read(response, started_s)
        finally:
            connection.close()

    @staticmethod
    def _read(response: http.client.HTTPResponse, started_s: float) -> Completion:
        first_token_s = 0.0
        tokens: list[int] = []
        timings: dict[str, Any] = {}
        for line in response:
            if not line.startswith(b"data: "):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(f"llama-server: {event['error']}")
            first_token_s = first_token_s or time.monotonic() - started_s
            tokens += event.get("tokens", [])
            timings = event.get("timings", timings)
        return Completion(first_token_s, int(timings["prompt_n"]), float(timings["prompt_ms"]) / 1e3, tokens)
