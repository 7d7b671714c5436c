"""What is done to repeated messages, said in the log: once for each kind. Knows nothing of messages."""

from __future__ import annotations

import logging

_log = logging.getLogger("luce.http.history")
_MAX_NOTES = 256  # clients choose what they send
_said: set[str] = set()


def say_once(text: str) -> None:
    if text not in _said and len(_said) < _MAX_NOTES:
        _said.add(text)
        _log.info("%s", text)
