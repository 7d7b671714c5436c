"""What a server says when it is asked how it stands, and what to say where none answers."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from luce.supervisor.cli.output import safe
from luce.supervisor.cli.server_client import ServerClient, ServerError


def status_of(server: ServerClient, timeout_s: float) -> dict[str, Any]:
    """/status.json. Raises ServerError, also where it is another program's."""
    status = server.look("/status.json", timeout_s)
    if not isinstance(status.get("engines"), list):
        raise ServerError(f"{server.url} is no server of luce-daemon: its /status.json says nothing of engines")
    shown: dict[str, Any] = _safe(status)
    return shown


def memory_of(server: ServerClient, model: str | None, timeout_s: float) -> dict[str, Any]:
    """/memory.json, of a server's first model where none is named. Raises ServerError, also where the key has not the
    scope for it."""
    query = "" if model is None else f"?{urlencode({'model': model})}"
    memory: dict[str, Any] = _safe(server.look(f"/memory.json{query}", timeout_s))
    return memory


def _safe(value: Any) -> Any:
    """Without characters that would command a terminal: the server may be anybody's."""
    match value:
        case str():
            return safe(value)
        case list():
            return [_safe(entry) for entry in value]
        case dict():
            return {safe(name): _safe(entry) for name, entry in value.items()}
    return value


def others_running() -> str:
    """A hint, where servers run on this machine."""
    from luce.supervisor.cli.watching.processes import runners_running

    urls = sorted(url for runner in runners_running() if not runner.is_private for url in runner.urls)
    return f"\nRunning here: {', '.join(urls)} (choose with --url)" if urls else ""
