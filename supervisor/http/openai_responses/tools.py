"""Tools of the Responses API: what of them the model is offered, and as what its calls go back to the client. Pure.

Functions are offered as they are; those of a namespace under `namespace__name`; a custom tool as a function of one
text. Whatever OpenAI would run itself (web_search, mcp, …) is left out: nobody here could answer the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.openai_responses.items import CUSTOM_INPUT, offered_name
from luce.supervisor.http.prompts.notes import say_once


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """What the client calls the tool that the model knows by another name."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class Tools:
    definitions: Sequence[Mapping[str, Any]] = ()
    """As ChatPrompt.tools wants them."""
    offered: Mapping[str, OfferedTool] = field(default_factory=dict)
    """By the name that the model knows."""

    def called(self, name: str) -> OfferedTool:
        """A name that was not offered is the client's to refuse."""
        return self.offered.get(name) or OfferedTool(name)

    def only(self, names: frozenset[str]) -> Tools:
        kept = [tool for tool in self.definitions if tool["function"]["name"] in names]
        return Tools(kept, {name: tool for name, tool in self.offered.items() if name in names})


def read_tools(tools: Sequence[object] | None) -> Tools:
    """Raises ApiError where a tool that could be offered is malformed."""
    definitions: list[Mapping[str, Any]] = []
    offered: dict[str, OfferedTool] = {}
    for tool, namespace, where in _flattened(tools or ()):
        read = _read_tool(tool, namespace, where)
        if read is None:
            continue
        definition, meaning = read
        name = definition["function"]["name"]
        if name in offered:
            say_once("a tool that has the name of one before it is left out")
            continue
        definitions.append(definition)
        offered[name] = meaning
    return Tools(definitions, offered)


def _flattened(tools: Sequence[object]) -> Iterator[tuple[Mapping[str, Any], str | None, str]]:
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise _invalid(where, "a tool must be an object")
        if tool.get("type") != "namespace":
            yield tool, None, where
            continue
        namespace = _name(tool, where)
        inner = tool.get("tools")
        if not isinstance(inner, list):
            raise _invalid(f"{where}.tools", "a namespace needs a list of tools")
        for number, one in enumerate(inner):
            if not isinstance(one, dict):
                raise _invalid(f"{where}.tools[{number}]", "a tool must be an object")
            yield one, namespace, f"{where}.tools[{number}]"


def _read_tool(
    tool: Mapping[str, Any], namespace: str | None, where: str
) -> tuple[Mapping[str, Any], OfferedTool] | None:
    kind = tool.get("type")
    if kind == "function":
        inner = tool.get("function")
        if isinstance(inner, dict):  # the shape of chat completions, which some clients send here too
            tool, where = inner, f"{where}.function"
        parameters = tool.get("parameters")
        if parameters is None:
            parameters = {"type": "object", "properties": {}}
        if not isinstance(parameters, dict):
            raise _invalid(f"{where}.parameters", "the parameters must be a JSON schema")
        description = _description(tool, where)
    elif kind == "custom":
        parameters = _CUSTOM_PARAMETERS
        description = _custom_description(tool, where)
    else:
        say_once(f"tools of type {str(kind)[:64]!r} are left out: this server cannot run them")
        return None
    name = _name(tool, where)
    function: dict[str, Any] = {"name": offered_name(namespace, name), "parameters": parameters}
    if description:
        function["description"] = description
    if tool.get("strict") is True:
        function["strict"] = True
    return {"type": "function", "function": function}, OfferedTool(name, namespace, kind == "custom")


_CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string", "description": "The whole input of the tool, as it is."}},
    "required": [CUSTOM_INPUT],
}


def _custom_description(tool: Mapping[str, Any], where: str) -> str:
    """Its grammar is told to the model in words: it stands inside a JSON text, where it could not be forced."""
    description = _description(tool, where)
    form = tool.get("format")
    if not isinstance(form, dict) or form.get("type") != "grammar":
        return description
    grammar = form.get("grammar") if isinstance(form.get("grammar"), dict) else form
    assert grammar is not None
    definition, syntax = grammar.get("definition"), grammar.get("syntax")
    if not isinstance(definition, str):
        raise _invalid(f"{where}.format.definition", "a grammar needs its definition")
    named = f"this {syntax} grammar" if isinstance(syntax, str) else "this grammar"
    return f"{description}\n\nThe input has to follow {named}:\n{definition}".strip()


def choose(tools: Tools, choice: Any) -> tuple[Tools, str]:
    """The tools that are left by a tool_choice, and the choice in ChatPrompt's words. Raises ApiError."""
    match choice:
        case None | "auto":
            return tools, "auto"
        case "none":
            return tools, "none"
        case "required":
            return tools, _required(tools)
        case {"type": "function" | "custom"}:
            return tools, f"function:{_chosen_name(tools, choice, 'tool_choice')}"
        case {"type": "allowed_tools"}:
            return _allowed(tools, choice)
        case {"type": str(kind)}:
            raise _invalid("tool_choice", f"no tool of type {kind[:64]!r} is offered here")
        case _:
            raise _invalid("tool_choice", "must be auto, none, required, or a function, a custom tool or allowed_tools")


def _allowed(tools: Tools, choice: Mapping[str, Any]) -> tuple[Tools, str]:
    nested = choice.get("allowed_tools")
    choice = nested if isinstance(nested, dict) else choice
    mode, listed = choice.get("mode", "auto"), choice.get("tools")
    if mode not in ("auto", "required") or not isinstance(listed, list):
        raise _invalid("tool_choice", "allowed_tools needs a list of tools, and a mode that is auto or required")
    names = frozenset(
        _chosen_name(tools, one, f"tool_choice.tools[{index}]")
        for index, one in enumerate(listed)
        if isinstance(one, dict) and one.get("type") in ("function", "custom")
    )
    if mode == "required" and len(names) == 1:
        return tools, f"function:{next(iter(names))}"  # the prompt stays as it was, and its prefix with it
    left = tools.only(names)
    if mode == "required":
        return left, _required(left)
    return (left, "auto") if names else (tools, "none")


def _chosen_name(tools: Tools, choice: Mapping[str, Any], where: str) -> str:
    nested = choice.get("function") or choice.get("custom")
    named = nested if isinstance(nested, dict) else choice
    name = offered_name(named.get("namespace"), _name(named, where))
    if name in tools.offered:
        return name
    for known, tool in tools.offered.items():  # a tool of a namespace, by its own name
        if tool.name == name:
            return known
    raise _invalid(where, f"no tool {name[:64]!r} is among the tools that are offered")


def _required(tools: Tools) -> str:
    if not tools.definitions:
        raise _invalid("tool_choice", "a tool is required, but none is offered")
    return "required"


def _name(tool: Mapping[str, Any], where: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise _invalid(f"{where}.name", "the name is missing")
    return name


def _description(tool: Mapping[str, Any], where: str) -> str:
    description = tool.get("description")
    if description is None:
        return ""
    if not isinstance(description, str):
        raise _invalid(f"{where}.description", "the description must be a text")
    return description


def _invalid(param: str, text: str) -> ApiError:
    return ApiError(ErrorKind.INVALID, "invalid_value", f"{param}: {text}", param=param)
