"""Context edits: what a client wants cleared of its older messages once a prompt is long. Pure.

They change the prompt's beginning, so that most of it is read anew: clients ask for it where that is cheaper for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from luce.supervisor.http.prompts.message_normalizer import CLEARED_REASONING

CLEARED = "[cleared to save context]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextEdit:
    clears: Literal["tool_uses", "thinking"]
    keep: int
    """The last so many stay."""
    trigger_tokens: int | None = None
    trigger_tool_uses: int | None = None
    at_least_tokens: int = 0
    """Where less would be gained, nothing is cleared."""
    excluded_tools: frozenset[str] = frozenset()
    clears_inputs: bool = False


@dataclass(frozen=True, slots=True)
class AppliedEdit:
    edit: ContextEdit
    n_cleared: int
    n_tokens: int


def is_triggered(edit: ContextEdit, messages: Sequence[Mapping[str, Any]], n_tokens: int) -> bool:
    if edit.trigger_tokens is not None:
        return n_tokens > edit.trigger_tokens
    if edit.trigger_tool_uses is not None:
        n_uses: int = sum(message["role"] == "tool" for message in messages)
        return n_uses > edit.trigger_tool_uses
    return True


def cleared(edit: ContextEdit, messages: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], int]:
    """The messages with what is left of them, and of how many something was taken."""
    return _without_thinking(edit, messages) if edit.clears == "thinking" else _without_results(edit, messages)


def _without_thinking(edit: ContextEdit, messages: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], int]:
    thoughtful = [index for index, message in enumerate(messages) if message.get("reasoning_content")]
    old = frozenset(thoughtful[: max(len(thoughtful) - edit.keep, 0)])
    left = [
        {**message, "reasoning_content": None, CLEARED_REASONING: True} if index in old else message
        for index, message in enumerate(messages)
    ]
    return left, len(old)


def _without_results(edit: ContextEdit, messages: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], int]:
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    names = {call.get("id"): call["function"]["name"] for call in calls}
    ids = [message.get("tool_call_id") for message in messages if message["role"] == "tool"]
    results = [id_ for id_ in ids if id_ is not None and names.get(id_) not in edit.excluded_tools]
    old = frozenset(results[: max(len(results) - edit.keep, 0)])
    left: list[Mapping[str, Any]] = []
    for message in messages:
        if message["role"] == "tool" and message.get("tool_call_id") in old:
            left.append({**message, "content": CLEARED})
        elif edit.clears_inputs and message.get("tool_calls"):
            left.append({**message, "tool_calls": [_without_input(call, old) for call in message["tool_calls"]]})
        else:
            left.append(message)
    return left, len(old)


def _without_input(call: Mapping[str, Any], old: frozenset[str]) -> Mapping[str, Any]:
    if call.get("id") not in old:
        return call
    return {**call, "function": {**call["function"], "arguments": "{}"}}
