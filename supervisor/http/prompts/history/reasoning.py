"""The reasoning of earlier answers, from wherever a client keeps it: `reasoning_content`, OpenRouter's `reasoning` and
`reasoning_details`, `thinking`, and parts of the content. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luce.supervisor.http.prompts.notes import say_once

_FIELDS = ("reasoning_content", "reasoning", "reasoning_details", "thinking", "thinking_blocks")
_TEXTS = ("text", "thinking", "reasoning_content", "reasoning", "content", "summary")
THOUGHT_PARTS = ("thinking", "reasoning", "redacted_thinking", "reasoning_text")
_MAX_LEVELS = 8


def reasoning_in(message: Mapping[str, Any]) -> str:
    """Of an assistant's message, from the first field that has any: clients send the same in several. Ciphers of other
    servers are left out."""
    for field in _FIELDS:
        if not (value := message.get(field)):
            continue
        if text := reasoning_text(value):
            return text
        say_once(f"reasoning in {field!r} that holds no text is left out")
    return ""


def without_thoughts(content: Any) -> tuple[Any, str]:
    """A message's content without the parts in which some clients keep the reasoning, and their text."""
    if not isinstance(content, list):
        return content, ""
    thoughts = [part for part in content if isinstance(part, dict) and part.get("type") in THOUGHT_PARTS]
    if not thoughts:
        return content, ""
    rest = [part for part in content if part not in thoughts]
    return rest, "\n".join(filter(None, map(reasoning_text, thoughts)))


def reasoning_text(value: Any, n_levels: int = _MAX_LEVELS) -> str:
    """A text, an object that holds one, or a list of them: pieces of one text, as streams brought them."""
    if isinstance(value, str):
        return value
    if n_levels == 0:
        return ""
    if isinstance(value, list):
        return "".join(reasoning_text(item, n_levels - 1) for item in value)
    if isinstance(value, dict):
        texts = (reasoning_text(value.get(key), n_levels - 1) for key in _TEXTS)
        return next(filter(None, texts), "")
    return ""
