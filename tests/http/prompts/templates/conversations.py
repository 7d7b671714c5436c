"""Small conversations, spelled by a letter for each message: s(ystem), d(eveloper), u(ser), a(ssistant), c(all),
w(ords) beside a call, 2 or 3 calls at once, r(esult) of the first call without one, R(esult) of the last."""

from __future__ import annotations

import json
from typing import Any

Message = dict[str, Any]

ROLES = {"s": "system", "d": "developer", "u": "user", "a": "assistant"}
CALLS = {"c": 1, "w": 1, "2": 2, "3": 3}
CALLED = "look_up"
TOOL = {
    "type": "function",
    "function": {
        "name": CALLED,
        "description": "Looks a place up.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}


def conversation(shape: str) -> list[Message]:
    """Ids of calls have the form of the server's own."""
    messages: list[Message] = []
    waiting: list[int] = []
    for at, letter in enumerate(shape):
        if letter in CALLS:
            waiting = [10 * at + number for number in range(CALLS[letter])]
            text = f"Message {at} here." if letter == "w" else ""
            messages.append({"role": "assistant", "content": text, "tool_calls": list(map(call, waiting))})
        elif letter in "rR":
            number = waiting.pop(0 if letter == "r" else -1) if waiting else 10 * at
            messages.append({"role": "tool", "content": f"Result {number} here.", "tool_call_id": id_of(number)})
        else:
            messages.append({"role": ROLES[letter], "content": f"Message {at} here."})
    return messages


def call(number: int) -> Message:
    function = {"name": CALLED, "arguments": json.dumps({"place": f"Place {number} here."})}
    return {"id": id_of(number), "type": "function", "function": function}


def id_of(number: int) -> str:
    return f"call_{number:024x}"


def said(messages: list[Message]) -> list[str]:
    """All texts, arguments and results, as they come."""
    texts = []
    for message in messages:
        texts += [message["content"]] if message["content"] else []
        texts += [json.loads(each["function"]["arguments"])["place"] for each in message.get("tool_calls", ())]
    return texts
