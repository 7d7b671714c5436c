"""Tool history: earlier calls and their results in the forms that templates take. Pure: each function makes messages of
messages (normalised ones, but for in_call_order), and gives those back that it does not change.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from luce.supervisor.http.prompts.canonical_message import arguments_of

Message = Mapping[str, Any]


class RetoldMessage(dict[str, Any]):
    """A message in words that its template takes. `told`: the message itself."""

    def __init__(self, message: Message, told: Message) -> None:
        super().__init__(message)
        self.told = told


_ALPHABET = string.ascii_letters + string.digits


def in_call_order(messages: Sequence[Message]) -> list[Message]:
    """Results behind their calls and in the calls' order, as far as they come before the assistant's next message.
    Templates without ids would give them to other calls."""
    ordered: list[Message] = []
    at = 0
    while at < len(messages):
        ordered.append(messages[at])
        at += 1
        if messages[at - 1].get("tool_calls"):
            end = next((n for n in range(at, len(messages)) if messages[n].get("role") == "assistant"), len(messages))
            results = [message for message in messages[at:end] if message.get("role") == "tool"]
            if len(results) > 1:
                places = _calls_of(messages[at - 1]["tool_calls"], results)
                ranked = sorted(range(len(results)), key=lambda n: (places[n] is None, places[n] or 0))
                results = [results[n] for n in ranked]
            ordered += results
            ordered += [message for message in messages[at:end] if message.get("role") != "tool"]
            at = end
    return ordered


def _calls_of(calls: Sequence[Message], results: Sequence[Message]) -> list[int | None]:
    """For each result the number of the call that it answers: by its id, or else the first that has no other result;
    None: there are more results than calls."""
    left = list(range(len(calls)))
    found: list[int | None] = []
    for result in results:
        id_ = result.get("tool_call_id")
        number = next((n for n in left if id_ and calls[n].get("id") == id_), None)
        found.append(number)
        if number is not None:
            left.remove(number)
    return [left.pop(0) if number is None and left else number for number in found]


def one_call_each(messages: Sequence[Message]) -> list[Message]:
    """Several calls of one message become turns of one call and its result each."""
    shown: list[Message] = []
    for call_message, others in _groups(messages):
        if call_message is None or len(call_message["tool_calls"]) == 1:
            shown += others if call_message is None else [call_message, *others]
            continue
        calls = call_message["tool_calls"]
        answered = _calls_of(calls, others)
        for number, call in enumerate(calls):
            rest = {} if number == 0 else {"content": "", "reasoning_content": None}
            shown.append(_without_none({**call_message, **rest, "tool_calls": [call]}))
            shown += [result for result, place in zip(others, answered, strict=True) if place == number]
        shown += [result for result, place in zip(others, answered, strict=True) if place is None]
    return shown


def text_apart(messages: Sequence[Message]) -> list[Message]:
    """Text beside calls becomes a message before them."""
    shown: list[Message] = []
    for message in messages:
        if message.get("tool_calls") and message["content"].strip():
            shown += [{"role": "assistant", "content": message["content"]}, {**message, "content": ""}]
        else:
            shown.append(message)
    return shown


def in_words(messages: Sequence[Message], *, calls: bool, results_alone: bool) -> list[Message]:
    """Calls become the assistant's text, results without a call the user's, where that is wanted."""
    shown: list[Message] = []
    for call_message, others in _groups(messages):
        n_answered = 0
        if call_message is not None:
            shown.append(_call_in_words(call_message) if calls else call_message)
            n_answered = 0 if calls else len(call_message["tool_calls"])
        for number, message in enumerate(others):
            is_alone = message.get("role") == "tool" and number >= n_answered
            shown.append(_result_in_words(message) if is_alone and results_alone else message)
    return shown


def _call_in_words(message: Message) -> Message:
    """In the form that call_repair.py reads: a model that does the same in its answer has called a tool."""
    told = [_in_tags(call["function"]["name"], arguments_of(call)) for call in message["tool_calls"]]
    text = "\n".join(filter(None, (message["content"].strip(), *told)))
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return RetoldMessage(rest | {"content": text}, message)


def _in_tags(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'


def _result_in_words(message: Message) -> Message:
    return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}


def with_call_ids(messages: Sequence[Message], length: int) -> list[Message]:
    """The ids of calls as so many letters and digits. Results without one get their call's."""
    shown: list[Message] = []
    n_calls = 0
    for call_message, others in _groups(messages):
        ids: list[str] = []
        if call_message is not None:
            calls = call_message["tool_calls"]
            ids = [call_id(call["id"] or f"call {n_calls + number}", length) for number, call in enumerate(calls)]
            n_calls += len(calls)
            renamed = [{**call, "id": id_} for call, id_ in zip(calls, ids, strict=True)]
            shown.append({**call_message, "tool_calls": renamed})
        for number, message in enumerate(others):
            if message.get("role") != "tool":
                shown.append(message)
                continue
            own = message.get("tool_call_id")
            by_place = ids[number] if number < len(ids) else call_id("", length)
            shown.append({**message, "tool_call_id": call_id(own, length) if own else by_place})
    return shown


def call_id(id_: str, length: int) -> str:
    """The id itself if it has this form, else always the same other one."""
    if len(id_) == length and id_.isascii() and id_.isalnum():
        return id_
    number = int.from_bytes(blake2b(id_.encode("utf-8", "surrogatepass")).digest())
    letters = []
    for _ in range(length):
        number, digit = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[digit])
    return "".join(letters)


def _groups(messages: Sequence[Message]) -> Iterator[tuple[Message | None, list[Message]]]:
    """Each message with calls and the results right behind it; all others alone."""
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        if not message.get("tool_calls"):
            yield None, [message]
            continue
        end = next((n for n in range(at, len(messages)) if messages[n].get("role") != "tool"), len(messages))
        yield message, list(messages[at:end])
        at = end


def _without_none(message: Message) -> Message:
    return {key: value for key, value in message.items() if value is not None}
