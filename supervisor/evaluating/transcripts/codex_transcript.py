"""Reads a rollout file of Codex (~/.codex/sessions/YEAR/MONTH/DAY/rollout-….jsonl) into its requests. Pure.

Each line has a type and a payload; the payloads of `response_item` are the items of the Responses API that were sent
and received (codex-rs/protocol/src/models.rs in openai/codex). Which of them came in one answer is not said: whatever
the model said until the next thing that it was told is taken for one. Files of 2025 have the items without an envelope.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

from luce.supervisor.evaluating.transcripts.conversation import (
    IMAGE,
    Conversation,
    Item,
    Message,
    Session,
    ToolCall,
    arguments_of,
    kind_of,
    mapping,
    text_of,
    time_of,
)

ITEM_KINDS = frozenset(
    {
        "message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
        "local_shell_call", "local_shell_call_output",
    }
)  # fmt: skip
LINE_KINDS = frozenset({"session_meta", "response_item", "compacted", "turn_context", "event_msg"})
_ROLES: dict[str, Literal["user", "system"]] = {"user": "user", "developer": "system", "system": "system"}


class _Reader:
    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self.system: str | None = None
        self.tools: list[Message] = []
        self.conversation = Conversation("main", "main")
        self._n_answers = 0
        self._n_items = 0

    def take(self, line: dict[str, Any]) -> None:
        kind = text_of(line.get("type"))
        payload = mapping(line.get("payload"))
        time_s = time_of(line.get("timestamp"))
        if kind == "session_meta":
            self._take_meta(payload)
        elif kind == "response_item":
            self._take_item(payload, time_s)
        elif kind == "compacted":
            self._take_compaction(payload, time_s)
        elif kind == "event_msg" and payload.get("type") == "thread_rolled_back":
            self._go_back(payload.get("num_turns"))
        elif kind in {"event_msg", "turn_context"}:
            pass  # what the client showed and how it was set: nothing of it is sent
        elif "payload" not in line and kind in ITEM_KINDS:
            self._take_item(line, time_s)
        elif "payload" not in line and not kind and "id" in line:
            self._take_meta(line)
        else:
            self.left_out[f"lines of kind {kind_of(kind)}"] += 1

    def _take_meta(self, payload: dict[str, Any]) -> None:
        instructions = payload.get("base_instructions", payload.get("instructions"))
        text = text_of(mapping(instructions).get("text") if isinstance(instructions, dict) else instructions)
        if self.system is None and text.strip():
            self.system = text
        tools = payload.get("dynamic_tools")
        for tool in map(mapping, tools if isinstance(tools, list) else []):
            name = text_of(tool.get("name"))
            schema = tool.get("input_schema", tool.get("inputSchema"))
            if name and isinstance(schema, dict):
                function = {"name": name, "description": text_of(tool.get("description")), "parameters": schema}
                self.tools.append({"type": "function", "function": function})

    def _take_item(self, payload: dict[str, Any], time_s: float | None) -> None:
        kind = text_of(payload.get("type"))
        self._n_items += 1
        if kind == "message":
            self._take_message(payload, time_s)
        elif kind == "reasoning":
            self.left_out["reasoning"] += 1
        elif kind in {"function_call", "custom_tool_call", "local_shell_call"}:
            name = text_of(payload.get("name")) or ("shell" if kind == "local_shell_call" else "unnamed")
            if kind == "function_call":
                arguments = arguments_of(payload.get("arguments"), self.left_out)
            elif kind == "custom_tool_call":
                arguments = arguments_of({"input": text_of(payload.get("input"))}, self.left_out)
            else:
                arguments = arguments_of({"command": mapping(payload.get("action")).get("command")}, self.left_out)
            identity = text_of(payload.get("call_id")) or text_of(payload.get("id")) or f"call_{self._n_items}"
            self._answer(time_s).calls.append(ToolCall(identity, name, arguments))
        elif kind.endswith("_call_output"):
            text = self._text_of_output(payload.get("output"))
            self.conversation.add(Item("tool", [text], call_id=text_of(payload.get("call_id")), time_s=time_s))
        else:
            self.left_out[f"items of kind {kind_of(kind)}"] += 1

    def _take_message(self, payload: dict[str, Any], time_s: float | None) -> None:
        role = text_of(payload.get("role"))
        text = self._text_of_parts(payload.get("content"))
        if not text.strip():
            self.left_out["messages without content"] += 1
        elif role == "assistant":
            self._answer(time_s).texts.append(text)
        elif role in _ROLES:
            self.conversation.add(Item(_ROLES[role], [text], time_s=time_s))
        else:
            self.left_out[f"messages of role {kind_of(role)}"] += 1

    def _answer(self, time_s: float | None) -> Item:
        items = self.conversation.items
        if not items or items[-1].role != "assistant":
            self._n_answers += 1
        return self.conversation.answer(self._n_items, f"answer {self._n_answers}", time_s)

    def _take_compaction(self, payload: dict[str, Any], time_s: float | None) -> None:
        """The history is replaced: by other items where they are given, else by a summary."""
        self.conversation.cut(0)
        history = payload.get("replacement_history")
        if not isinstance(history, list):
            text = text_of(payload.get("message"))
            if text.strip():
                self.conversation.add(Item("user", [text], time_s=time_s))
            return
        other = _Reader()
        for item in map(mapping, history):
            other._take_item(item, time_s)  # a reader of its own: what it answered then is no request now
        for old in other.conversation.items:
            old.key = ""
            self.conversation.add(old)
        self.left_out.update(other.left_out)

    def _go_back(self, n_turns: object) -> None:
        """By so many messages of the user."""
        items = self.conversation.items
        begins = [n for n, item in enumerate(items) if item.role == "user" and (n == 0 or items[n - 1].role != "user")]
        if isinstance(n_turns, int) and n_turns > 0 and begins:
            self.conversation.cut(begins[max(len(begins) - n_turns, 0)])

    def _text_of_parts(self, content: object) -> str:
        if isinstance(content, str):
            return text_of(content)
        texts = []
        for part in map(mapping, content if isinstance(content, list) else []):
            kind = text_of(part.get("type"))
            if kind in {"input_text", "output_text", "text"}:
                texts.append(text_of(part.get("text")))
            elif kind in {"input_image", "image"}:
                self.left_out["images"] += 1
                texts.append(IMAGE)
            else:
                self.left_out[f"parts of kind {kind_of(kind)}"] += 1
        return "\n".join(text for text in texts if text)

    def _text_of_output(self, output: object) -> str:
        if isinstance(output, dict):
            output = output.get("content")
        return self._text_of_parts(output)


def read_codex(name: str, lines: Iterable[dict[str, Any]]) -> Session:
    """A session from the objects of its lines, whatever they are."""
    reader = _Reader()
    for line in lines:
        reader.take(line)
    turns = tuple(turn for _, turn in reader.conversation.turns(reader.left_out))
    return Session(name, "codex", turns, reader.system, tuple(reader.tools), reader.left_out)
