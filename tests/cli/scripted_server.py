"""A server that answers chat completions by a script: for what the packaged model does not do by itself, such as
thinking, calling tools, breaking off. Knows HTTP and server-sent events only.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Event = dict[str, Any] | str
"""A chunk's delta, or data as it is."""


MODELS = '{"data": [{"id": "scripted"}]}'


class ScriptedServer(ThreadingHTTPServer):
    """Each request takes the next answer of the script: its events, or a status with a body. `asked` has the bodies."""

    daemon_threads = True

    def __init__(self, script: Sequence[Any], models: str | None, status: str | None) -> None:
        """`models` and `status`: what is read at /v1/models and /status.json, if anything."""
        super().__init__(("127.0.0.1", 0), Handler)
        self.script = list(script)
        self.pages = {"/v1/models": models, "/status.json": status}
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.gone = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: ScriptedServer

    def do_GET(self) -> None:
        body = self.server.pages.get(self.path)
        self._send(404 if body is None else 200, body or "")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(json.loads(body))
        self.server.keys.append(self.headers.get("Authorization"))
        answer = self.server.script.pop(0)
        if isinstance(answer, tuple):
            self._send(answer[0], answer[1])
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            for event in answer:
                data = event if isinstance(event, str) else json.dumps({"choices": [event]})
                self.wfile.write(f": alive\n\ndata: {data}\n\n".encode())
        except (BrokenPipeError, ConnectionResetError):
            self.server.gone.set()

    def _send(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def text(content: str) -> Event:
    return {"index": 0, "delta": {"content": content}}


def end(reason: str = "stop", **usage: Any) -> list[Event]:
    counts = {"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}, **usage}
    return [
        {"index": 0, "delta": {}, "finish_reason": reason},
        json.dumps({"choices": [], "usage": counts}),
        "[DONE]",
    ]


def forever(content: str) -> Iterator[Event]:
    """Until the reader has gone: then writing fails."""
    while True:
        yield text(content)


@contextmanager
def scripted(*script: Any, models: str | None = MODELS, status: str | None = None) -> Iterator[ScriptedServer]:
    with ScriptedServer(script, models, status) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
