"""Refusals: what a template's error says to a client. Pure, but for the log, which has the whole error."""

from __future__ import annotations

import logging
import re

from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.text import TemplateError

logger = logging.getLogger("luce.http.answering")

_REASON = re.compile(r".*\nError: (?:Jinja Exception: )?(.*)\Z", re.DOTALL)
"""llama.cpp puts it behind excerpts of the template, the innermost last."""
_MAX_CHARACTERS = 300


def refusal(error: TemplateError, *, is_about_tools: bool) -> ApiError:
    """`is_about_tools`: the conversation alone would do."""
    logger.debug("the chat template refuses a request: %s", error)
    what, param = ("these tools", "tools") if is_about_tools else ("these messages", "messages")
    return ApiError(
        ErrorKind.INVALID, "bad_messages", f"The chat template does not take {what}: {reason_of(error)}", param=param
    )


def reason_of(error: TemplateError) -> str:
    """A sentence of one line."""
    text = str(error)
    found = _REASON.match(text)
    text = " ".join((found[1] if found is not None else text).split())[:_MAX_CHARACTERS]
    return text if text.endswith((".", "!", "?")) else f"{text}."
