"""What must not stand in a report: who and where its machine is. Knows this machine; must not know what is reported."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Iterable
from pathlib import Path

from luce.supervisor.config import table

_HIDDEN = "…"
_URL = re.compile(r"\b[a-z]+://[^\s'\"`,;()]*")
_PATH = re.compile(r"(?<![\w.])(?:~|\.{0,2}/[\w.~-])[^\s'\"`,;:()]*|\b[A-Za-z]:\\[^\s'\"`]*")
_ADDRESS = re.compile(r"\b(?:\d{1,3}(?:\.\d{1,3}){3}|[\w.-]+:\d{2,5})\b")
# Options whose values are numbers, or words of ours.
_TELLING_KINDS = frozenset(
    {"tokens", "number", "choice", "bytes", "positive", "factor", "tokens_or_auto", "cache_type", "spans",
     "number_or_auto", "share", "uint64"}
)  # fmt: skip
_TELLING = frozenset({"cache_type_k", "cache_type_v", "host_cache_type"})


def cleaned(text: str) -> str:
    """One line without paths, addresses, and the names of user and machine."""
    text = " ".join(text.split())
    for pattern in (_URL, _PATH, _ADDRESS):
        text = pattern.sub(_HIDDEN, text)
    for name in _names():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", _HIDDEN, text, flags=re.IGNORECASE)
    return text[:1000]


def told_options(arguments: Iterable[str]) -> list[str]:
    """The engine's options as they were given, each with its value where that says nothing of files and machines."""
    options = {
        f"--{name}": option for option in table.engine_options().values() for name in (option.name, *option.aliases)
    }
    told: list[str] = []
    name = ""
    for word in arguments:
        if word in options:
            name = word
            told.append(name)
        else:
            is_telling = options[name].kind in _TELLING_KINDS or options[name].field in _TELLING
            told[-1] += f" {word if is_telling else _HIDDEN}"
    return told


def _names() -> set[str]:
    host = socket.gethostname()
    names = {host, host.partition(".")[0], Path.home().name}
    try:
        names.add(getpass.getuser())
    except (OSError, KeyError):  # an id without a name
        names.add(os.environ.get("USER", ""))
    return {name for name in names if name}
