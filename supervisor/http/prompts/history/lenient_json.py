"""JSON as models and clients write it: by the standard, quoted as Python does, with a bracket or a comma amiss, or cut
off. Pure; knows nothing of calls.
"""

from __future__ import annotations

import ast
import json
import math
import warnings
from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

_MAX_LITERAL = 1 << 16  # characters
_MAX_DIGITS = 4000  # Python converts no longer ones


def read_json(text: str, *, strict: bool = True) -> Any:
    """Numbers that a float or an integer cannot hold are texts. `strict=False`: texts may hold line breaks and tabs.
    Raises ValueError, RecursionError."""
    return json.loads(text, strict=strict, parse_int=_whole, parse_float=_real, parse_constant=str)


def lenient_json(text: str) -> Any:
    """JSON whose last brackets may be missing or too many, with commas before brackets, line breaks in texts, or quoted
    as Python does. None: it is none."""
    for candidate in (text, *_mended(text)):
        try:
            return read_json(candidate, strict=False)
        except (ValueError, RecursionError):
            continue
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            return read_json(json.dumps(ast.literal_eval(text))) if len(text) < _MAX_LITERAL else None
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None


def begun_json(text: str) -> Any:
    """What is there of a JSON text that was cut off. None: nothing."""
    try:
        return from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return None


def _whole(digits: str) -> int | str:
    return int(digits) if len(digits) <= _MAX_DIGITS else digits


def _real(digits: str) -> float | str:
    value = float(digits)
    return value if math.isfinite(value) else digits


def _mended(text: str) -> Sequence[str]:
    open_brackets: list[str] = []
    kept: list[str] = []
    in_text = is_escaped = False
    for character in text:
        if in_text:
            in_text = is_escaped or character != '"'
            is_escaped = character == "\\" and not is_escaped
        elif character == '"':
            in_text = True
        elif character in "{[":
            open_brackets.append("}" if character == "{" else "]")
        elif character in "}]":
            if open_brackets and open_brackets[-1] != character:
                return ()
            while kept and kept[-1].isspace():
                kept.pop()
            if kept and kept[-1] == ",":
                kept.pop()
            if not open_brackets:
                continue  # one too many
            open_brackets.pop()
        kept.append(character)
    if in_text:
        return ()  # the text itself was cut off: who knows what was to follow
    return ("".join(kept) + "".join(reversed(open_brackets)),)
