"""What a transcript lacks: a system prompt, and definitions of the tools that were called. The same in every run, so
that sessions of one client share it, as they do in life. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from luce.supervisor.evaluating.transcripts.conversation import Client, Kind, Message, Session, Turn

_RULES = (
    "Read a file before you change it, and change no more of it than the task needs.",
    "Run the tests that cover what you have changed; say so plainly when one of them fails.",
    "Prefer a search with a precise pattern to reading whole folders.",
    "Keep the style of the code around: its names, its comments, its way to report errors.",
    "Never guess the content of a file, the output of a command or the name of a function.",
    "Ask before you do what cannot be undone: deleting, pushing, publishing, sending.",
    "Call several tools at once when none of them needs the result of another.",
    "Answer in few words; the user sees what the tools have done.",
    "Credentials, keys and personal data are neither shown nor written into files.",
    "When a command fails twice in the same way, stop and think about the cause.",
)


def made_up_system(client: Client, kind: Kind, n_bytes: int) -> str:
    """A system prompt of about so many bytes, the same every time."""
    who = "a sub-agent that works for a coding agent" if kind == "side" else "a coding agent"
    text = f"You are {who} ({client}). You work in the user's folder with the tools below.\n"
    number = 0
    while len(text) < n_bytes:
        if number % len(_RULES) == 0:
            text += f"\n# Part {number // len(_RULES) + 1}\n"
        text += f"{number + 1}. {_RULES[(number * 7 + number // len(_RULES)) % len(_RULES)]}\n"
        number += 1
    return text


def tools_of(client: Client, sessions: Sequence[Session]) -> list[Message]:
    """The same for all of a client's sessions: what their transcripts define, and the rest made up."""
    own = [session for session in sessions if session.client == client]
    given = {tool["function"]["name"]: tool for session in own for tool in session.tools}
    for tool in made_up_tools(turn for session in own for turn in session.turns):
        given.setdefault(tool["function"]["name"], tool)
    return [given[name] for name in sorted(given)]


def made_up_tools(turns: Iterable[Turn]) -> list[Message]:
    """A definition for each tool that was called, with the arguments that were seen, by name."""
    seen: dict[str, dict[str, str]] = {}
    for turn in turns:
        for call in turn.answered.calls:
            parameters = seen.setdefault(call.name, {})
            for name, value in json.loads(call.arguments).items():
                parameters.setdefault(name, _json_type(value))
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"The tool {name}. Use it only for what its name says.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        parameter: {"type": kind, "description": f"The {parameter.replace('_', ' ')}"}
                        for parameter, kind in sorted(parameters.items())
                    },
                    "required": [],
                },
            },
        }
        for name, parameters in sorted(seen.items())
    ]


def _json_type(value: object) -> str:
    kinds: Mapping[type, str] = {
        bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object",
    }  # fmt: skip
    return kinds.get(type(value), "string")
