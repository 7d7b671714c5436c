"""Reads a session file of Claude Code (~/.claude/projects/PROJECT/SESSION.jsonl) into its requests. Pure.

The file is a log, not a list of requests: an answer is several lines with one message id, one for each block; the lines
of sub-agents stand between the others; after "rewind" a line's parent is one further back; a compaction begins anew.
System prompt and tools are not in it. The format is not documented by its maker: what is not known is counted.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any

from luce.supervisor.evaluating.transcripts.conversation import (
    DOCUMENT,
    IMAGE,
    Conversation,
    Item,
    Session,
    ToolCall,
    Turn,
    arguments_of,
    kind_of,
    mapping,
    text_of,
    time_of,
)

TITLE_SYSTEM = (
    "Write a title for the conversation that begins with the user's message. At most seven words, no quotation marks, "
    "in the language of the message. Answer with the title and nothing else."
)
"""The client's own request for a title is not in its file, only what came of it: this stands for its system prompt."""


class _Reader:
    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self._conversations: dict[str, Conversation] = {"": Conversation("main", "main")}
        self._places: dict[str, tuple[str, int]] = {}  # of a line's uuid: its conversation, and how long that was then
        self._titles: list[tuple[int, Turn]] = []
        self._n_lines = 0

    def take(self, line: dict[str, Any]) -> None:
        self._n_lines += 1
        uuid = text_of(line.get("uuid"))
        if uuid and uuid in self._places:
            self.left_out["lines that were there before"] += 1
            return
        name = self._conversation_of(line)
        conversation = self._conversations[name]
        kind = text_of(line.get("type"))
        if kind == "user":
            self._take_user(conversation, line)
        elif kind == "assistant":
            self._take_answer(conversation, line)
        elif kind == "system" and line.get("subtype") == "compact_boundary":
            conversation.cut(0)
        elif kind == "ai-title":
            self._take_title(text_of(line.get("aiTitle")))
        else:
            self.left_out[f"lines of kind {kind_of(kind)}"] += 1
        if uuid:
            self._places[uuid] = (name, len(conversation.items))

    def turns(self) -> tuple[Turn, ...]:
        found = self._titles[:]
        for conversation in self._conversations.values():
            found += conversation.turns(self.left_out)
        return tuple(turn for _, turn in sorted(found, key=lambda pair: pair[0]))

    def _conversation_of(self, line: dict[str, Any]) -> str:
        """The key of the conversation that a line belongs to: the main one, or one of a sub-agent."""
        if line.get("isSidechain") is not True:
            return ""
        name = text_of(line.get("agentId"))
        if not name:  # older files: known by its first line, whose parent is none of its own
            name, _ = self._places.get(text_of(line.get("parentUuid")), ("", 0))
            name = name or f"#{len(self._conversations)}"
        if name not in self._conversations:
            self._conversations[name] = Conversation("side", f"side {len(self._conversations)}")
        return name

    def _take_user(self, conversation: Conversation, line: dict[str, Any]) -> None:
        is_summary = line.get("isCompactSummary") is True
        if is_summary:
            conversation.cut(0)
        elif line.get("isVisibleInTranscriptOnly") is True:
            self.left_out["messages that are only shown"] += 1
            return
        time_s = time_of(line.get("timestamp"))
        content = mapping(line.get("message")).get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not isinstance(content, list):
            self.left_out["messages without content"] += 1
            return
        results = [block for block in map(mapping, content) if block.get("type") == "tool_result"]
        if not results:
            self._go_back(conversation, line)
        for block in results:
            text = self._text_of_blocks(block.get("content"))
            conversation.add(Item("tool", [text], call_id=text_of(block.get("tool_use_id")), time_s=time_s))
        text = self._text_of_blocks([block for block in content if mapping(block).get("type") != "tool_result"])
        if text:
            conversation.add(Item("user", [text], time_s=time_s))

    def _go_back(self, conversation: Conversation, line: dict[str, Any]) -> None:
        """To a line's parent, if the conversation had gone on from there. (Results of tools that ran at once have
        parents further back too, and change nothing.)"""
        name, n_items = self._places.get(text_of(line.get("parentUuid")), ("", len(conversation.items)))
        if self._conversations[name] is conversation and any(
            item.role == "assistant" for item in conversation.items[n_items:]
        ):
            conversation.cut(n_items)

    def _take_answer(self, conversation: Conversation, line: dict[str, Any]) -> None:
        message = mapping(line.get("message"))
        if line.get("isApiErrorMessage") is True or message.get("model") == "<synthetic>":
            self.left_out["messages of the client itself"] += 1
            return
        content = message.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not isinstance(content, list):
            self.left_out["messages without content"] += 1
            return
        answer = conversation.answer(self._n_lines, text_of(message.get("id")), time_of(line.get("timestamp")))
        for block in map(mapping, content):
            self._take_block(answer, block)

    def _take_block(self, answer: Item, block: dict[str, Any]) -> None:
        kind = text_of(block.get("type"))
        if kind == "text":
            text = text_of(block.get("text"))
            if text not in answer.texts:  # some versions repeat what they have written
                answer.texts.append(text)
        elif kind == "tool_use":
            identity = text_of(block.get("id")) or f"call_{self._n_lines}_{len(answer.calls)}"
            if all(call.id != identity for call in answer.calls):
                arguments = arguments_of(block.get("input"), self.left_out)
                answer.calls.append(ToolCall(identity, text_of(block.get("name")) or "unnamed", arguments))
        elif kind in {"thinking", "redacted_thinking"}:
            self.left_out["reasoning"] += 1
        else:
            self.left_out[f"blocks of kind {kind_of(kind)}"] += 1

    def _text_of_blocks(self, content: object) -> str:
        if isinstance(content, str):
            return text_of(content)
        texts = []
        for block in map(mapping, content if isinstance(content, list) else []):
            kind = text_of(block.get("type"))
            if kind == "text":
                texts.append(text_of(block.get("text")))
            elif kind in {"image", "document"}:
                self.left_out[f"{kind}s"] += 1
                texts.append(IMAGE if kind == "image" else DOCUMENT)
            else:
                self.left_out[f"blocks of kind {kind_of(kind)}"] += 1
        return "\n".join(text for text in texts if text)

    def _take_title(self, title: str) -> None:
        """A request that ran beside the conversation's first: short, and with a system prompt of its own."""
        asked = tuple(itertools.takewhile(lambda item: item.role == "user", self._conversations[""].items))
        if not asked or not title.strip() or any(title in turn.answered.texts for _, turn in self._titles):
            return
        turn = Turn("title", "title", asked, Item("assistant", [title]), None, TITLE_SYSTEM)
        self._titles.append((self._n_lines, turn))


def read_claude(name: str, lines: Iterable[dict[str, Any]]) -> Session:
    """A session from the objects of its lines, whatever they are."""
    reader = _Reader()
    for line in lines:
        reader.take(line)
    return Session(name, "claude", reader.turns(), None, (), reader.left_out)
