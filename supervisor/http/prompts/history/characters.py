"""Texts without halves of surrogate pairs, which UTF-8 does not have and strict parsers of JSON refuse."""

from __future__ import annotations

import re

_HALF = re.compile("[\ud800-\udfff]")
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def whole_characters(text: str) -> str:
    """U+FFFD in place of each half."""
    return text if text.isascii() else _HALF.sub("\ufffd", text)


def whole_escapes(json_text: str) -> str:
    """The same of a JSON text, which may spell halves as escapes."""
    text = whole_characters(json_text)
    return _ESCAPE.sub(_whole_escape, text) if "\\u" in text else text


def _whole_escape(match: re.Match[str]) -> str:
    return match[0] if match[1] is None else "\\ufffd"
