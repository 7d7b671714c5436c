"""What an answer took, for tests of what is told of it."""

from __future__ import annotations

from typing import Any

from luce.supervisor.http.answering.answer_events import Usage


def usage(**fields: Any) -> Usage:
    values: dict[str, Any] = {
        "cache_tier": "resident",
        "queue_s": 0.0,
        "prefill_s": 0.1,
        "decode_s": 0.2,
        "n_resumes": 0,
    } | fields
    return Usage(**values)
