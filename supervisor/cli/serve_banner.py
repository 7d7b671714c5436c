"""What `luce serve` prints once it is ready: where it is, and the lines that clients take. Pure text."""

from __future__ import annotations

import shlex
from textwrap import indent

from luce.supervisor.http.window.client_lines import client_lines


def start_banner(url: str, model: str, key: str | None, *, n_ctx: int) -> str:
    """`key`: None where nobody needs one; `n_ctx`: tokens that a conversation may have."""
    if url.startswith("unix:"):
        header = "" if key is None else f" -H 'Authorization: Bearer {key}'"
        return (
            f"\nluce serve is ready: {model} at {url}\n\n"
            f"curl\n    curl --unix-socket {shlex.quote(url.removeprefix('unix:'))}{header} http://localhost/v1/models\n\n"
            "Ctrl-C ends the server.\n"
        )
    return (
        f"\nluce serve is ready: {model} at {url}   (chat and status: {url}/)\n\n"
        + "".join(
            f"{name}\n{indent(lines, '    ')}\n\n" for name, lines in client_lines(url, model, key, n_ctx=n_ctx).items()
        )
        + "More in docs/agents.md. Ctrl-C ends the server.\n"
    )


def open_to_all_warning(host: str) -> str:
    return (
        f"\nWARNING: everybody who reaches {host} may use this server: it was started with --open-to-all and without"
        " an API key.\nThey can spend its time, and find out what others have asked. LUCE_API_KEY or --api-keys asks"
        " for keys.\n"
    )
