"""Conversation: what has been said so far, as the messages that are sent with each turn. Pure.

Knows the shapes of chat completions' messages; knows no terminal and no server.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from luce.supervisor.cli.server_client import Answer, ToolCall

Message = dict[str, Any]

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


class NotAConversationError(ValueError):
    """The text says why it is none."""


class Conversation:
    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self._messages: list[Message] = []

    @property
    def messages(self) -> list[Message]:
        """All of them, the system message first."""
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*first, *self._messages]

    @property
    def turns(self) -> list[str]:
        """What the user has said, the first first."""
        return [_text_of(message["content"]) for message in self._messages if message["role"] == "user"]

    def reset(self) -> None:
        """The system message stays."""
        self._messages.clear()

    def forked(self, n_turns: int | None = None) -> Conversation:
        """Another one that begins as this one does: with its first turns, or all of them. Raises ValueError."""
        fork = Conversation(self.system)
        starts = [index for index, message in enumerate(self._messages) if message["role"] == "user"]
        if n_turns is not None and n_turns > len(starts):
            raise ValueError(f"there are {len(starts)} turns, not {n_turns}")
        end = None if n_turns is None or n_turns == len(starts) else starts[n_turns]
        fork._messages = self._messages[:end]
        return fork

    def say(self, text: str, files: Iterable[tuple[str, str]] = ()) -> None:
        """The user's next message, behind `files`: names and texts. A turn before it that was not answered to its end
        is forgotten: no template knows what to make of it."""
        if self._messages and not self._is_answered():
            self._drop_turn()
        before = "".join(f'<file name="{name}">\n{content}\n</file>\n\n' for name, content in files)
        self._messages.append({"role": "user", "content": before + text})

    def take(self, answer: Answer) -> None:
        message: Message = {"role": "assistant", "content": answer.content}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in answer.calls
            ]
        self._messages.append(message)

    def give_result(self, call: ToolCall, text: str) -> None:
        self._messages.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text})

    def retry(self) -> bool:
        """Back to the last thing that the user said; False: there is none."""
        text = self._drop_turn()
        if text is None:
            return False
        self._messages.append({"role": "user", "content": text})
        return True

    def _is_answered(self) -> bool:
        last = self._messages[-1]
        return last["role"] == "assistant" and not last.get("tool_calls")

    def _drop_turn(self) -> Any:
        for index in range(len(self._messages) - 1, -1, -1):
            if self._messages[index]["role"] == "user":
                text = self._messages[index]["content"]
                del self._messages[index:]
                return text
        return None

    def to_json(self) -> str:
        return json.dumps({"messages": self.messages}, ensure_ascii=False, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Conversation:
        """Raises NotAConversationError."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise NotAConversationError(f"it is not JSON: {error}") from None
        messages = value.get("messages") if isinstance(value, dict) else value
        if not isinstance(messages, list):
            raise NotAConversationError('it has no list of "messages"')
        conversation = cls()
        for number, message in enumerate(messages):
            if not isinstance(message, dict) or message.get("role") not in _ROLES:
                raise NotAConversationError(f"message {number} has no role of {', '.join(sorted(_ROLES))}")
            if message["role"] == "user" and "content" not in message:
                raise NotAConversationError(f"message {number} has no content")
            if number == 0 and message["role"] == "system" and isinstance(message.get("content"), str):
                conversation.system = message["content"]
            else:
                conversation._messages.append(message)
        return conversation


def _text_of(content: Any) -> str:
    """Of a message that another program wrote it may be a list of parts."""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
