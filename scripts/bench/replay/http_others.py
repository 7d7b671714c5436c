"""Further agents' request bodies, for sessions that no rule was fitted to: what each puts where in Chat Completions.

The heads are made up. Knows no server and nothing of what is measured.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.bench.replay.http_clients import (
    RECORDED_FOLDER,
    RECORDED_QUESTION,
    TOOL,
    Body,
    ChatClient,
    Message,
    Spelling,
    call_schema,
)

_WORDS = ("file", "change", "line", "read", "write", "branch", "error", "name", "path", "value", "tool", "user")


def words(rng: random.Random, n: int) -> str:
    """Prose that nothing else says."""
    said = [f"{rng.choice(_WORDS)}{'.' if i % 11 == 10 else ''} {rng.randrange(1000)}" for i in range(n)]
    return " ".join(said)


class OtherClient(ChatClient):
    """One that has tools and changes nothing, like Continue."""

    n_system = 100
    n_tools = 6

    def __init__(self, name: str, *, has_texts: bool = True) -> None:
        self.name = name
        rng = random.Random(name)
        system = f"You are {name}. {words(rng, self.n_system)}. Home: {RECORDED_FOLDER}. {words(rng, 20)}."
        first = {"role": "user", "content": self.asked(RECORDED_QUESTION)}
        self.head = {"model": "luce", "messages": [{"role": "system", "content": system}, first]}
        if self.n_tools:
            names = [f"{rng.choice(_WORDS)}_{n}" for n in range(self.n_tools)]
            schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
            tools = [self.tool(each, words(rng, 12), schema) for each in names]
            self.head["tools"] = [*tools, self.tool(TOOL, "Looks into a file.", call_schema(has_texts=has_texts))]

    def asked(self, question: str) -> Any:
        return question


class Cline(OtherClient):
    """No tools but in words: results are the user's. The state of the editor stands behind all that the user says."""

    n_system = 240
    n_tools = 0

    def asked(self, question: str) -> Any:
        state = f"<environment_details>\nFiles in {RECORDED_FOLDER}\n</environment_details>"
        return [{"type": "text", "text": part} for part in (f"<task>\n{question}\n</task>", state)]

    def body(self, head: Body, messages: Sequence[Message], spelling: Spelling, *, calls: bool, limit: int) -> Body:
        told = [_with_state(message, n) for n, message in enumerate(messages)]
        return super().body(head, told, spelling, calls=calls, limit=limit)


class Roo(Cline):
    """The same with tools, and the state as a text of the user's behind their results."""

    n_system = 140
    n_tools = 8

    def body(self, head: Body, messages: Sequence[Message], spelling: Spelling, *, calls: bool, limit: int) -> Body:
        told: list[Message] = []
        for n, message in enumerate(messages):
            told.append(_with_state(message, n))
            if message.role == "tool":
                told.append(Message("user", [_state(n)]))
        return OtherClient.body(self, head, told, spelling, calls=calls, limit=limit)


class Aider(OtherClient):
    """The files stand between what is done and the present question, as the last answer has changed them; a reminder
    of the rules ends each request."""

    n_system = 120
    n_tools = 0

    def body(self, head: Body, messages: Sequence[Message], spelling: Spelling, *, calls: bool, limit: int) -> Body:
        n_answers = sum(message.said is not None for message in messages)
        last = max((n for n, message in enumerate(messages) if message.role == "user"), default=None)
        files = words(random.Random(3), 40) + words(random.Random(n_answers // 3), 20)
        beside = [{"role": "user", "content": f"Trust these files:\n{files}"}, {"role": "assistant", "content": "Ok."}]
        body = super().body(head, messages, spelling, calls=calls, limit=limit)
        at = len(head["messages"]) - 1 if last is None else len(head["messages"]) + last
        own = body["messages"]
        reminder = {"role": "user", "content": f"{own[-1]['content']}\n\n{words(random.Random(5), 25)}"}
        body["messages"] = [*own[:at], *beside, *own[at:-1], reminder]
        return body


class Goose(OtherClient):
    """What it tells before each request (time, folder, list of things to do) is kept nowhere, and goes before the last
    answer, so that no call is parted from its result."""

    def body(self, head: Body, messages: Sequence[Message], spelling: Spelling, *, calls: bool, limit: int) -> Body:
        at = max((n for n, message in enumerate(messages) if message.said is not None), default=len(messages))
        to_do = words(random.Random(at), 12)
        told = Message("user", [f"<info-msg>\nIt is now 10:{len(messages):02d}\n{to_do}\n</info-msg>"])
        return super().body(head, [*messages[:at], told, *messages[at:]], spelling, calls=calls, limit=limit)


class OpenHands(OtherClient):
    """All texts are lists of parts."""

    n_system = 200

    def body(self, head: Body, messages: Sequence[Message], spelling: Spelling, *, calls: bool, limit: int) -> Body:
        body = super().body(head, messages, spelling, calls=calls, limit=limit)
        body["messages"] = [dict(message) for message in body["messages"]]
        for message in body["messages"]:
            if isinstance(message["content"], str):
                message["content"] = [{"type": "text", "text": message["content"]}]
            if message["role"] == "tool":
                message["name"] = TOOL
        return body


def _state(number: int) -> str:
    return f"<environment_details>\nTime: 10:{number:02d}\n{number * 731} tokens used\n</environment_details>"


def _with_state(message: Message, number: int) -> Message:
    return Message("user", [*message.texts, _state(number)]) if message.role == "user" else message


OTHERS: Mapping[str, type[OtherClient]] = {
    "aider": Aider, "cline": Cline, "continue": OtherClient, "goose": Goose, "openhands": OpenHands, "roo": Roo,
    "zed": OtherClient,
}  # fmt: skip
