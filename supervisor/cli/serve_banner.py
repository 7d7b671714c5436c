"""What `luce serve` prints once it is ready: where it is, and the lines that clients take. Pure text."""

from __future__ import annotations

import shlex
from textwrap import indent

from luce.supervisor.http.window.client_lines import client_lines

PACKAGED_NOTE = (
    "This is the packaged model, which knows little. --model FILE.gguf serves another one;\n"
    "docs/quickstart.md says how to get a real one.\n\n"
)


def start_banner(url: str, model: str, key: str | None, *, n_ctx: int | None, note: str = "") -> str:
    """`key`: None where nobody needs one; `n_ctx`: tokens that a conversation may have, as far
    as is known; `note`: what to know of this server, at the end."""
    if url.startswith("unix:"):
        header = "" if key is None else f" -H 'Authorization: Bearer {key}'"
        return (
            f"\nluce serve is ready: {model} at {url}\n\n"
            f"curl\n    curl --unix-socket {shlex.quote(url.removeprefix('unix:'))}{header} http://localhost/v1/models\n\n"
            f"{note}Ctrl-C stops the server.\n"
        )
    return (
        f"\nluce serve is ready: {model} at {url}   (chat and status: {url}/)\n\n"
        + "".join(
            f"{name}\n{indent(lines, '    ')}\n\n" for name, lines in client_lines(url, model, key, n_ctx=n_ctx).items()
        )
        + f"{note}See docs/agents.md. Ctrl-C stops the server.\n"
    )


def exposed_warning(host: str) -> str:
    return (
        f"WARNING: this server has no API key, so everyone who reaches {host} can use it.\n"
        "    They can use its time, read its status, and find out what others have asked.\n"
        "    --api-key KEY requires a key, --api-keys FILE keys with limits (`luce keys new NAME` makes one);\n"
        "    --host 127.0.0.1 serves only this machine. --open-to-all disables this warning.\n\n"
    )
