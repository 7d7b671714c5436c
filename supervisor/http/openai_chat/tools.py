"""A chat completion's tools and how they are to be chosen, the legacy functions too, as ChatPrompt has them.

Tools that are no functions are left out: the model cannot be offered them. Must not know messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from luce.supervisor.http.openai_shared.fields import expect, refusal

MAX_NAME_CHARACTERS = 256
MODES = ("auto", "none", "required")


@dataclass(frozen=True, slots=True)
class Toolbox:
    tools: Sequence[Mapping[str, Any]] = ()
    choice: str = "auto"
    is_legacy: bool = False
    """They came as `functions`: a call goes back as `function_call`."""


def read_toolbox(tools: Any, choice: Any, functions: Any, function_call: Any) -> Toolbox:
    if tools is None and functions is not None:
        expect(functions, list, "functions", "an array")
        read = [_read_function(function, f"functions[{number}]") for number, function in enumerate(functions)]
        return Toolbox(*_choose(read, _named_legacy(function_call), "function_call"), is_legacy=True)
    return Toolbox(*_choose(_read_tools(tools), choice, "tool_choice"))


def _read_tools(value: Any) -> list[dict[str, Any]]:
    if value is None:
        return []
    expect(value, list, "tools", "an array")
    tools = []
    for number, tool in enumerate(value):
        param = f"tools[{number}]"
        expect(tool, dict, param, "an object")
        kind = tool.get("type", "function")
        expect(kind, str, f"{param}.type", "a string")
        if kind == "function":
            # Some clients send the Responses API's flat form here too.
            inner = tool if "function" not in tool and "name" in tool else tool.get("function")
            tools.append(_read_function(inner, param if inner is tool else f"{param}.function"))
    return tools


def _read_function(value: Any, param: str) -> dict[str, Any]:
    expect(value, dict, param, "an object")
    name, description, parameters = value.get("name"), value.get("description"), value.get("parameters")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARACTERS:
        text = f"Invalid '{param}.name': expected a string of 1 to {MAX_NAME_CHARACTERS} characters."
        raise refusal(f"{param}.name", text)
    if description is not None and not isinstance(description, str):
        name = f"{param}.description"
        raise refusal(name, f"Invalid type for '{name}': expected a string.", "invalid_type")
    if parameters is not None and not isinstance(parameters, dict):
        name = f"{param}.parameters"
        raise refusal(name, f"Invalid type for '{name}': expected a JSON schema as an object.", "invalid_type")
    function: dict[str, Any] = {
        "name": name,
        "description": description or "",
        "parameters": parameters or {"type": "object", "properties": {}},
    }
    if value.get("strict") is True:
        function["strict"] = True
    return {"type": "function", "function": function}


def _choose(tools: list[dict[str, Any]], choice: Any, param: str) -> tuple[list[dict[str, Any]], str]:
    """The tools that may be called, and ChatPrompt's word for how."""
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        if not isinstance(allowed, dict) or not isinstance(allowed.get("tools"), list):
            raise refusal(param, f"Invalid '{param}': 'allowed_tools' names a mode and tools.", "invalid_type")
        names = {_name_of(tool, param) for tool in allowed["tools"] if _is_function(tool)}
        tools = [tool for tool in tools if tool["function"]["name"] in names]
        choice = allowed.get("mode", "auto")
    if choice is None:
        return tools, "auto"
    if isinstance(choice, dict):
        return tools, _named(tools, choice, param)
    if choice == "any":  # what others than OpenAI call it
        choice = "required"
    if choice not in MODES:
        expected = ", ".join(f"'{mode}'" for mode in MODES)
        raise refusal(param, f"Invalid value for '{param}': supported are {expected} and an object that names a tool.")
    if choice == "required" and not tools:
        raise refusal(param, f"Invalid value for '{param}': 'required' needs at least one tool of type 'function'.")
    return tools, choice


def _named(tools: list[dict[str, Any]], choice: Mapping[str, Any], param: str) -> str:
    if not _is_function(choice):
        raise refusal(param, f"Invalid '{param}': only tools of type 'function' can be called.")
    name = _name_of(choice, param)
    if all(tool["function"]["name"] != name for tool in tools):
        raise refusal(param, f"Invalid '{param}': there is no tool '{name:.80}' in 'tools'.")
    return f"function:{name}"


def _is_function(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type", "function") == "function"


def _name_of(choice: Mapping[str, Any], param: str) -> str:
    """{"type": "function", "function": {"name"}}, or the flat form."""
    function = choice.get("function", choice)
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        raise refusal(f"{param}.function.name", f"Missing required parameter: '{param}.function.name'.")
    return name


def _named_legacy(function_call: Any) -> Any:
    """`function_call` names its function without a type."""
    if isinstance(function_call, dict):
        return {"type": "function", "function": function_call}
    return function_call
