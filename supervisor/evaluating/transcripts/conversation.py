"""What a transcript is turned into: sessions of turns, each one request with its recorded answer. Pure.

Messages have the shapes of OpenAI's chat completions, which chat templates are made for. Knows neither client's file
format, no model and no engine.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

Message = dict[str, Any]
Client = Literal["claude", "codex"]
Kind = Literal["main", "side", "title"]  # the conversation, one of a sub-agent, a request for a title

NO_RESULT = "(no result was recorded)"
IMAGE = "(here was an image)"
DOCUMENT = "(here was a document)"


@dataclass(slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str  # a JSON object


@dataclass(slots=True)
class Item:
    """A part of a conversation, before neighbours of one role are joined."""

    role: Literal["user", "system", "assistant", "tool"]
    texts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    call_id: str = ""  # of a tool's result
    key: str = ""  # of an answer: lines with the same one belong together
    time_s: float | None = None  # of its last line

    @property
    def is_empty(self) -> bool:
        return not self.calls and not any(text.strip() for text in self.texts)


@dataclass(frozen=True)
class Turn:
    """One request: what was sent, without the client's system prompt and tools, and what came back."""

    kind: Kind
    conversation: str
    sent: tuple[Item, ...]
    answered: Item
    think_s: float | None = None
    """What tools and people took before it, by the transcript's clock; None where it says nothing."""
    system: str | None = None
    """In place of the session's, for requests that have a system prompt of their own."""

    @property
    def messages(self) -> list[Message]:
        """Made when it is asked for: those of all turns together are quadratic in their number."""
        return to_messages(self.sent)

    @property
    def answer(self) -> Message:
        return _assistant([self.answered])


@dataclass(frozen=True)
class Session:
    """One transcript, in the order of its requests."""

    name: str
    client: Client
    turns: tuple[Turn, ...]
    system: str | None
    """The system prompt, where the transcript has it."""
    tools: tuple[Message, ...]
    """Definitions of tools, where the transcript has them."""
    left_out: Counter[str]
    """What was not replayed, and how often: lines that were not understood, reasoning, images …"""


class Conversation:
    """The items of one conversation as they grow, and the requests that were made on the way."""

    def __init__(self, kind: Kind, name: str) -> None:
        self.kind = kind
        self.name = name
        self.items: list[Item] = []
        self._answers: dict[str, Item] = {}  # of these items, by key
        self._requests: list[tuple[int, tuple[Item, ...], Item]] = []  # order, what was sent, what came back

    def add(self, item: Item) -> None:
        self.items.append(item)

    def answer(self, order: int, key: str, time_s: float | None) -> Item:
        """The answer that a line belongs to: the one with its key, or a new one, which is a new request."""
        known = self._answers.get(key)
        if known is None:
            known = Item("assistant", key=key)
            self._requests.append((order, tuple(self.items), known))
            self.items.append(known)
            if key:
                self._answers[key] = known
        known.time_s = time_s if time_s is not None else known.time_s
        return known

    def cut(self, n_items: int) -> None:
        """Somebody went back to an earlier point and on from there."""
        for item in self.items[n_items:]:
            self._answers.pop(item.key, None)
        self.items = self.items[:n_items]

    def turns(self, left_out: Counter[str]) -> list[tuple[int, Turn]]:
        """The requests with their order. Answers that were nothing but reasoning are counted, not asked for."""
        found = []
        for order, sent, answer in self._requests:
            if answer.is_empty:
                left_out["answers without text"] += 1
            elif not any(item.role == "user" and not item.is_empty for item in sent):
                left_out["answers without a prompt"] += 1
            else:
                found.append((order, Turn(self.kind, self.name, sent, answer, _think_s(sent))))
        return found


def _think_s(sent: Sequence[Item]) -> float | None:
    """From the last answer to the last thing that was sent with the next request."""
    last = next((n for n in range(len(sent) - 1, -1, -1) if sent[n].role == "assistant"), None)
    if last is None:
        return None
    times = [item.time_s for item in sent[last + 1 :] if item.time_s is not None]
    answered_s = sent[last].time_s
    return None if answered_s is None or not times else max(max(times) - answered_s, 0.0)


def to_messages(items: Sequence[Item]) -> list[Message]:
    """The messages that a client sends: neighbours of one role joined, each call followed by its result.

    A result without its call is not sent; a call without a result gets a note in its place, as the clients do it.
    """
    results = {item.call_id: item for item in items if item.role == "tool"}
    messages: list[Message] = []
    group: list[Item] = []

    def flush() -> None:
        if not group:
            return
        if group[0].role != "assistant":
            messages.append({"role": group[0].role, "content": _text(group)})
        else:
            messages.append(_assistant(group))
            for item in group:
                messages.extend(_result(call, results) for call in item.calls)
        group.clear()

    for item in items:
        if item.role == "tool" or item.is_empty:
            continue
        if group and (group[0].role != item.role or group[-1].calls):
            flush()
        group.append(item)
    flush()
    return messages


def _result(call: ToolCall, results: dict[str, Item]) -> Message:
    result = results.get(call.id)
    content = NO_RESULT if result is None else _text([result])
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}


def _text(items: Sequence[Item]) -> str:
    return "\n\n".join(text for item in items for text in item.texts if text.strip())


def _assistant(items: Sequence[Item]) -> Message:
    message: Message = {"role": "assistant", "content": _text(items)}
    calls = [call for item in items for call in item.calls]
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return message


def system_as_user(messages: Iterable[Message]) -> Iterator[dict[str, Any]]:
    """System messages as the user's, joined with what stands beside them: for templates that take one at the beginning
    only."""
    last: Message | None = None
    for message in messages:
        role = "user" if message["role"] == "system" else message["role"]
        if last is not None and role == "user" and last["role"] == "user":
            last["content"] += f"\n\n{message['content']}"
            continue
        if last is not None:
            yield last
        last = {**message, "role": role}
    if last is not None:
        yield last


# What both formats need


def parse_line(line: bytes) -> dict[str, Any] | str:
    """The object of a line, or why there is none. Never raises."""
    try:
        value = json.loads(line.decode(errors="replace"), parse_constant=lambda _: None, parse_float=_finite)
    except (ValueError, RecursionError):
        return "lines that are not JSON"
    return value if isinstance(value, dict) else "lines that are no object"


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else 0.0


def mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def text_of(value: object) -> str:
    """A string that can be encoded; empty for anything else."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""


def kind_of(value: object) -> str:
    """A kind's name as far as it can be shown."""
    name = text_of(value)[:40]
    return name if name and name.isprintable() else "(none)"


def arguments_of(value: object, left_out: Counter[str]) -> str:
    """A call's arguments as the JSON object that templates want, from an object or from its text."""
    if isinstance(value, str):
        parsed = parse_line(value.encode(errors="replace"))
        value = {"input": value} if isinstance(parsed, str) else parsed
    if not isinstance(value, dict):
        value = {}
    try:
        return text_of(json.dumps(value, ensure_ascii=False))
    except (ValueError, RecursionError):
        left_out["arguments that are nested too deeply"] += 1
        return "{}"


def time_of(value: object) -> float | None:
    """Seconds since 1970 of an ISO time."""
    try:
        time = datetime.fromisoformat(text_of(value))
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
