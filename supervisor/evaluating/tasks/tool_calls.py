"""Tool calls: asked for something that one of the tools does, is there a call, of that tool, with those arguments?"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from luce.supervisor.evaluating.question import Call, Message, Question, Reply, Scale, Scores, Task
from luce.supervisor.evaluating.tasks.tool_schemas import arguments_of, is_well_formed

METRICS = ("tools-formed", "tools-name", "tools-arguments")
_N_ANSWER = 160

_NAMES = ("app", "main", "server", "client", "util", "parser", "model", "cache")
_FOLDERS = ("src", "lib", "tests", "docs")
_PATTERNS = ("TODO", "import json", "def main", "timeout", "class Client")
_CITIES = ("Paris", "Oslo", "Lima", "Cairo", "Kyoto")
_COMMANDS = ("pytest -q", "git status", "ls -la", "make test", "python main.py")


def _tool(name: str, what: str, **properties: Mapping[str, Any]) -> Message:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": what, "parameters": schema}}


_TEXT = {"type": "string"}
READ_FILE = _tool("read_file", "Read a file.", path=_TEXT)
LIST_FILES = _tool("list_files", "List the files of a folder.", path=_TEXT)
SEARCH = _tool("search", "Search for a text in all files.", pattern=_TEXT)
RUN = _tool("run_command", "Run a command in a shell.", command=_TEXT)
WEATHER = _tool(
    "get_weather", "Tell the weather of a city.", city=_TEXT, unit={"type": "string", "enum": ["celsius", "fahrenheit"]}
)
ADD = _tool("add", "Add two whole numbers.", a={"type": "integer"}, b={"type": "integer"})
TOOLS = (READ_FILE, LIST_FILES, SEARCH, RUN, WEATHER, ADD)


@dataclass(frozen=True)
class _Wish:
    """What is asked for, and the call that does it."""

    asked: str
    name: str
    arguments: Mapping[str, Any]


def _read(rng: random.Random) -> _Wish:
    path = f"{rng.choice(_FOLDERS)}/{rng.choice(_NAMES)}.py"
    return _Wish(f"Read the file {path}", "read_file", {"path": path})


def _list(rng: random.Random) -> _Wish:
    path = rng.choice(_FOLDERS)
    return _Wish(f"List the files in the folder {path}", "list_files", {"path": path})


def _search(rng: random.Random) -> _Wish:
    pattern = rng.choice(_PATTERNS)
    return _Wish(f'Search for "{pattern}" in all files', "search", {"pattern": pattern})


def _run(rng: random.Random) -> _Wish:
    command = rng.choice(_COMMANDS)
    return _Wish(f"Run the command `{command}`", "run_command", {"command": command})


def _weather(rng: random.Random) -> _Wish:
    city, unit = rng.choice(_CITIES), rng.choice(("celsius", "fahrenheit"))
    return _Wish(f"What is the weather in {city}, in {unit}?", "get_weather", {"city": city, "unit": unit})


def _add(rng: random.Random) -> _Wish:
    a, b = rng.randrange(100, 1000), rng.randrange(100, 1000)
    return _Wish(f"Add {a} and {b} with the tool", "add", {"a": a, "b": b})


_WISHES: Sequence[Callable[[random.Random], _Wish]] = (_read, _list, _search, _run, _weather, _add)


def _calls(scale: Scale) -> Iterator[Question]:
    for number in range(scale.n_calls):
        rng = scale.rng("tools", number)
        wish = _WISHES[number % len(_WISHES)](rng)
        tools = rng.sample(TOOLS, len(TOOLS))
        yield Question(
            task="tools",
            name=f"{number + 1}, {wish.name}",
            messages=[{"role": "user", "content": f"{wish.asked}."}],
            max_tokens=_N_ANSWER,
            judge=_Judge(wish, tools),
            right=Reply(calls=(Call(wish.name, json.dumps(wish.arguments)),)),
            tools=tools,
        )


class _Judge:
    """One call and no other; each step needs the one before."""

    def __init__(self, wish: _Wish, tools: Sequence[Message]) -> None:
        self._wish = wish
        self._tools = tools

    def __call__(self, reply: Reply) -> Scores:
        is_formed = bool(reply.calls) and is_well_formed(reply, self._tools)
        is_right = is_formed and [call.name for call in reply.calls] == [self._wish.name]
        does_it = is_right and arguments_of(reply.calls[0]) == self._wish.arguments
        return dict(zip(METRICS, (float(is_formed), float(is_right), float(does_it)), strict=True))


TASKS = (
    Task("tools", "tools", "Calls that are well formed, of the right tool, with the right arguments.", METRICS, _calls),
)
