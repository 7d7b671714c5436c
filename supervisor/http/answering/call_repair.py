"""Tool calls that a model has spelled beside its format, so that they come as text.

The strict parser has had its turn: what it takes for a call never comes here. A text is a call only where nothing else
can be meant: the answer begins with the JSON of one (leading_calls.py), or a line outside of code fences begins with
the tag of one, and nothing follows it. It names a tool of the request. Such a text is held back while it comes; as soon
as it cannot be a call any more it is shown. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from luce.supervisor.http.answering.leading_calls import (
    MAX_HELD_CHARACTERS,
    LeadingCalls,
    RepairedCall,
    read_json_call,
)
from luce.supervisor.http.prompts.history.lenient_json import lenient_json

_OPENERS = ("<tool_call>", "<function=")
_FUNCTION = re.compile(r"<function=([^>\n]{1,256})>(.*?)(?:</function>|(?=<function=)|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]{1,256})>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)
_TAGS = re.compile(r"</?tool_call>")


class CallHold:
    """Of one answer: `feed` gives what may be shown of its text; `finish` says what the rest is."""

    def __init__(self, tools: Sequence[Mapping[str, Any]], max_calls: int | None = None) -> None:
        """`tools`: in the shapes of OpenAI's chat completions. `max_calls`: so many with which it begins, and it has
        ended; None: any number."""
        functions = [tool["function"] for tool in tools]
        self._tools: dict[str, Mapping[str, Any]] = {
            function["name"]: function.get("parameters") or {} for function in functions
        }
        self._leading = LeadingCalls(self._tools, max_calls)
        self._rest = ""  # not shown yet: the beginning of a call, or what may become one
        self._is_held = False
        self._is_fenced = False
        self._line = ""  # what was shown of the current line
        self._is_off = False

    @property
    def may_end(self) -> bool:
        """Whether the answer has ended, or ends behind a call that may come next."""
        return self._leading.is_open or self._leading.has_ended

    @property
    def has_ended(self) -> bool:
        return self._leading.has_ended

    def feed(self, text: str) -> tuple[list[RepairedCall], str]:
        """Calls that have come, and what can be shown of the text behind them."""
        calls, text = self._leading.feed(text) if self._leading.is_open else ([], text)
        return calls, self._hold_tags(text)

    def release(self) -> str:
        """Something else follows: the rest, which is no call."""
        text = self._leading.release()
        self._is_off = self._is_off or self._is_held or bool(text.strip())
        self._is_held = False
        return self._all() + text

    def finish(self) -> tuple[list[RepairedCall], str]:
        """The calls that the rest of the text is, or that text."""
        calls, text = self._leading.finish()
        if self._is_held and (calls := read_calls(self._rest, self._tools)):
            self._rest = ""
        return calls, self._all() + text

    def _all(self) -> str:
        text, self._rest = self._rest, ""
        return text

    def _hold_tags(self, text: str) -> str:
        self._rest += text
        if not self._is_held and not self._is_off:
            return self._look()
        if self._is_held and self._may_be_call():
            return ""
        self._is_off, self._is_held = True, False
        return self._all()

    def _look(self) -> str:
        """What can be shown, up to where a call may begin."""
        shown = []
        while self._rest:
            if self._line == "" and not self._is_fenced:
                if self._rest.startswith(_OPENERS):
                    self._is_held = True
                    break
                if any(opener.startswith(self._rest) for opener in _OPENERS):
                    break
            line, newline, self._rest = self._rest.partition("\n")
            shown.append(line + newline)
            self._line += line
            if newline:
                self._is_fenced ^= self._line.lstrip().startswith(("```", "~~~"))
                self._line = ""
        return "".join(shown)

    def _may_be_call(self) -> bool:
        if len(self._rest) > MAX_HELD_CHARACTERS:
            return False
        begun = re.match(r"<function=([^>\n]*)([>\n]?)", self._rest)
        return begun is None or not begun[2] or (begun[2] == ">" and begun[1] in self._tools)


def read_calls(text: str, tools: Mapping[str, Mapping[str, Any]]) -> list[RepairedCall]:
    """The calls that a text is, all of it; none where anything is left over. `tools`: parameters by name."""
    inner = _TAGS.sub("", text).strip()
    calls = _xml_calls(inner, tools) if inner.startswith("<function=") else _json_calls(inner, tools)
    return calls or []


def _xml_calls(text: str, tools: Mapping[str, Mapping[str, Any]]) -> list[RepairedCall] | None:
    calls = []
    at = 0
    while at < len(text):
        match = _FUNCTION.match(text, at)
        if match is None:
            return None
        parameters = tools.get(match[1])
        if parameters is None or _PARAMETER.sub("", match[2]).strip():
            return None
        values = {name: _typed(value, parameters, name) for name, value in _PARAMETER.findall(match[2])}
        calls.append(RepairedCall.of(match[1], values))
        at = match.end()
        while at < len(text) and text[at].isspace():
            at += 1
    return calls


def _typed(value: str, parameters: Mapping[str, Any], name: str) -> Any:
    """A parameter's text as its schema has it; texts lose the line breaks that the format puts around them."""
    text = value.removeprefix("\n").removesuffix("\n")
    properties = parameters.get("properties")
    schema = properties.get(name) if isinstance(properties, Mapping) else None
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind in {"string", None}:
        return text
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return text


def _json_calls(text: str, tools: Mapping[str, Mapping[str, Any]]) -> list[RepairedCall] | None:
    value = lenient_json(text)
    calls = []
    for item in value if isinstance(value, list) else [value]:
        call = read_json_call(item, tools)
        if call is None:
            return None
        calls.append(call)
    return calls
