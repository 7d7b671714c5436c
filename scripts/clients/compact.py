#!/usr/bin/env python3
"""Have a client compact its latest session, where its command line has no word for it: pi over its RPC on stdin and
stdout, opencode over its own HTTP server. `compact.py pi COMMAND…` and `compact.py opencode COMMAND…`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any


def compact_pi(child: subprocess.Popen[str]) -> bool:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write('{"type": "compact"}\n')
    child.stdin.flush()
    for line in child.stdout:
        print(line, end="")
        event = json.loads(line)
        if event.get("command") == "compact":
            return event.get("success") is True
    return False


def compact_opencode(child: subprocess.Popen[str]) -> bool:
    assert child.stdout is not None
    url = next((line.split()[-1] for line in child.stdout if "listening on http://" in line), None)
    if url is None:
        return False
    session = ask(f"{url}/session?roots=true")[0]["id"]
    return ask(f"{url}/session/{session}/summarize", {"providerID": "luce", "modelID": "luce"}) is True


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        return json.load(answer)


WAYS: Mapping[str, Callable[[subprocess.Popen[str]], bool]] = {"pi": compact_pi, "opencode": compact_opencode}


def main() -> int:
    name, *command = sys.argv[1:]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            return 0 if WAYS[name](child) else 1
        finally:
            child.terminate()


if __name__ == "__main__":
    sys.exit(main())
