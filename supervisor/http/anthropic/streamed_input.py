"""A call's arguments on their way into a stream, as JSON by the standard: SDKs parse them while they come, and give an
answer up whose arguments they cannot read. Text in, text out; knows no events."""

from __future__ import annotations

import json
import math
import re

from luce.supervisor.http.prompts.history.arguments import ONLY_KEY

_HEX = "[0-9a-fA-F]"
_PIECE = re.compile(
    rf"""
      (?P<pair>\\u[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}})
    | (?P<open>\\(?:u{_HEX}{{0,3}} | u[dD][89abAB]{_HEX}{{2}}(?:\\(?:u{_HEX}{{0,3}})?)?)?\Z)
    | (?P<half>\\u[dD][89a-fA-F]{_HEX}{{2}})
    | \\.
    | (?P<quote>")
    | (?P<control>[\x00-\x1f])
    | (?P<number>-?[0-9][0-9.eE+-]* | -\Z)
    """,
    re.VERBOSE | re.DOTALL,
)


class StreamedInput:
    """The same values as `object_of` has of the whole text: halves of surrogate pairs are U+FFFD, what a double cannot
    hold is a text, what is no object is the only member of one. Of arguments that are cut off it gives what is there.
    """

    def __init__(self) -> None:
        self._held = ""  # an escape or a number that may go on
        self._is_in_text = False
        self._is_object: bool | None = None
        self._alone = ""  # what is no object, as far as it has come

    def feed(self, text: str) -> str:
        text, self._held = self._held + text, ""
        begin = ""
        if self._is_object is None:
            if not (text := text.lstrip()):
                return ""
            self._is_object = text.startswith("{")
            begin = "" if self._is_object else f'{{"{ONLY_KEY}": '
        whole = _PIECE.sub(lambda found: self._piece(found, is_last=found.end() == len(text)), text)
        self._alone += "" if self._is_object else whole
        return begin + whole

    def finish(self) -> str:
        """What is still missing."""
        rest = "" if self._is_in_text else _number(self._held)
        return rest if self._is_object is not False or _is_cut(self._alone + rest) else rest + "}"

    def _piece(self, found: re.Match[str], *, is_last: bool) -> str:
        piece = found[0]
        match found.lastgroup:
            case "open":
                self._held = piece
                return ""
            case "half":
                return "\\ufffd"
            case "quote":
                self._is_in_text = not self._is_in_text
                return piece
            case "control" if self._is_in_text:
                return json.dumps(piece)[1:-1]
            case "number" if not self._is_in_text:
                if is_last:
                    self._held = piece
                    return ""
                return _number(piece)
            case _:
                return piece


def _is_cut(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return True
    return False


def _number(digits: str) -> str:
    try:
        return digits if math.isfinite(float(digits)) else f'"{digits}"'
    except ValueError:
        return digits
