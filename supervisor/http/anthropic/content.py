"""What Anthropic's dialect says of content blocks that it refuses, and of those that it leaves out.

prompts/history reads their texts and images.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.prompts.notes import say_once

Block = Mapping[str, Any]


def invalid(path: str, text: str) -> ApiError:
    return ApiError(ErrorKind.INVALID, "invalid_request", f"{path}: {text}", param=path)


def log_left_out(what: str, kind: str) -> None:
    """Says once for each kind what is not handed to the model."""
    say_once(f"{what} of type {kind[:64]!r} are left out: the model cannot use them")


def string_field(block: Block, name: str, path: str, *, is_new: bool = True) -> str:
    """Empty where an earlier block has none. Raises ApiError, if it is new."""
    value = block.get(name)
    if isinstance(value, str):
        return value
    if is_new:
        raise invalid(f"{path}.{name}", "Field required" if value is None else "Input should be a valid string")
    return ""
