"""Tool calls that a model has spelled beside its format, so that they come as text: found at an answer's end and read
leniently.

The strict parser has had its turn: what it takes for a call never comes here. A text is a call only where nothing else
can be meant: it begins a line outside of code fences with the tag of a call, or the whole answer is one JSON object
that names a tool; it names a tool of the request, has what that requires, and nothing follows it. Such a text is held
back while it comes; as soon as it cannot be a call any more it is shown. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from luce.supervisor.http.prompts.history.lenient_json import lenient_json

MAX_HELD_CHARACTERS = 1 << 20
_OPENERS = ("<tool_call>", "<function=")
_JSON_CALL = re.compile(r"""\{\s*["'](name|function)["']\s*:""")
_JSON_LOOK = 64  # characters of an answer that begins with a brace, after which it is known whether it may be a call
_FUNCTION = re.compile(r"<function=([^>\n]{1,256})>(.*?)(?:</function>|(?=<function=)|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]{1,256})>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)
_TAGS = re.compile(r"</?tool_call>")


@dataclass(frozen=True, slots=True)
class RepairedCall:
    name: str
    arguments: str
    """JSON text."""


class CallHold:
    """Of one answer: `feed` gives what may be shown of its text; `finish` says what the rest is."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """In the shapes of OpenAI's chat completions."""
        functions = [tool["function"] for tool in tools]
        self._tools: dict[str, Mapping[str, Any]] = {
            function["name"]: function.get("parameters") or {} for function in functions
        }
        self._rest = ""  # not shown yet: the beginning of a call, or what may become one
        self._is_held = False
        self._is_fenced = False
        self._line = ""  # what was shown of the current line
        self._has_shown = False
        self._is_off = False

    def feed(self, text: str) -> str:
        self._rest += text
        if not self._is_held and not self._is_off:
            shown = self._look()
        elif self._is_held and not self._may_be_call():
            shown = self.release()
        else:
            shown = "" if self._is_held else self._all()
        self._has_shown = self._has_shown or bool(shown.strip())
        return shown

    def release(self) -> str:
        """It is no call: the rest, and nothing is held any more."""
        self._is_off, self._is_held = True, False
        return self._all()

    def finish(self) -> tuple[str, list[RepairedCall]]:
        """The rest of the text, or the calls that it is."""
        if self._is_held and (calls := read_calls(self._rest, self._tools)):
            self._rest = ""
            return "", calls
        return self._all(), []

    def _all(self) -> str:
        text, self._rest = self._rest, ""
        return text

    def _look(self) -> str:
        """What can be shown, up to where a call may begin."""
        if not self._has_shown and self._rest.lstrip().startswith("{"):
            self._is_held = True
            return "" if self._may_be_call() else self.release()
        shown = []
        while self._rest:
            if self._line == "" and not self._is_fenced:
                if self._rest.startswith(_OPENERS):
                    self._is_held = True
                    break
                if any(opener.startswith(self._rest) for opener in _OPENERS):
                    break
            line, newline, rest = self._rest.partition("\n")
            shown.append(line + newline)
            self._line = "" if newline else self._line + line
            if newline and shown[-1].lstrip().startswith(("```", "~~~")):
                self._is_fenced = not self._is_fenced
            self._rest = rest
        return "".join(shown)

    def _may_be_call(self) -> bool:
        text = self._rest.lstrip()
        if len(text) > MAX_HELD_CHARACTERS:
            return False
        if text.startswith("{"):
            return len(text) < _JSON_LOOK or _JSON_CALL.match(text) is not None
        begun = re.match(r"<function=([^>\n]*)([>\n]?)", text)
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
        call = _checked(match[1], values, parameters)
        if call is None:
            return None
        calls.append(call)
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
        if not isinstance(item, Mapping):
            return None
        said = item.get("function") if isinstance(item.get("function"), Mapping) else item
        assert isinstance(said, Mapping)
        name = said.get("name")
        arguments = next((said[key] for key in ("arguments", "parameters", "input") if key in said), None)
        if isinstance(arguments, str):
            arguments = lenient_json(arguments)
        parameters = tools.get(name) if isinstance(name, str) else None
        call = None if parameters is None or not isinstance(name, str) else _checked(name, arguments, parameters)
        if call is None:
            return None
        calls.append(call)
    return calls


def _checked(name: str, arguments: Any, parameters: Mapping[str, Any]) -> RepairedCall | None:
    required = parameters.get("required") or ()
    if not isinstance(arguments, Mapping) or not all(key in arguments for key in required):
        return None
    return RepairedCall(name, json.dumps(arguments, ensure_ascii=False))
