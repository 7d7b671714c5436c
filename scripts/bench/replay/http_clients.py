"""Four coding agents' request bodies: a conversation in each one's dialect, and what an answer in it said.

The heads (tools, system text, what surrounds the first question) are recorded ones of tests/data/clients. In which
spelling an answer is sent back is the caller's. Knows no server and nothing of what is measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from luce.supervisor.http.anthropic.opaque import reasoning_of
from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.text import TextModel
from scripts.bench.harness import ROOT
from scripts.bench.replay.dialects import prompt_of

Body = dict[str, Any]

RECORDED_QUESTION = "Say hello in one word."
RECORDED_FOLDER = "/home/user/project"
TOOL = "look_into"
_ARGUMENTS: Body = {
    "path": {"type": "string", "enum": ['src/\u00e4.py "old"', "docs/a\\b.md"]},
    "depth": {"type": "number", "enum": [1.0, 20.0]},
    "hidden": {"type": "boolean"},
}


def call_schema(*, has_texts: bool) -> Body:
    names = [name for name in _ARGUMENTS if has_texts or name != "path"]
    return {"type": "object", "properties": {name: _ARGUMENTS[name] for name in names}, "required": names}


@dataclass(frozen=True)
class Spelling:
    """In what an answer comes back otherwise than it was given."""

    arguments: bool = False
    trim: bool = False
    split: bool = False
    merge: bool = False
    ids: bool = False
    null: bool = False
    reasoning: str = "text"
    """`text`, `own` (the dialect's way for clients that were not to see it) or `left out`."""


AS_GIVEN = Spelling()


@dataclass(frozen=True)
class Said:
    """An answer, in no dialect's words."""

    text: str
    reasoning: str = ""
    opaque: str = ""
    """Reasoning as only its server can read it."""
    calls: Sequence[tuple[str, str, str]] = ()
    """Id, name and arguments of each."""
    n_prompt: int = 0
    n_read: int = 0

    def spelled(self, spelling: Spelling, number: int) -> Said:
        """`number`: of the answer in its conversation."""
        calls = [
            (f"id{number}x{index}" if spelling.ids else id_, name,
             _written_anew(arguments) if spelling.arguments else arguments)
            for index, (id_, name, arguments) in enumerate(self.calls)
        ]  # fmt: skip
        text = self.text.strip() if spelling.trim else self.text
        reasoning = "" if spelling.reasoning == "left out" else self.reasoning
        return Said(text, reasoning, self.opaque if spelling.reasoning == "own" else "", calls)

    def message(self) -> dict[str, Any]:
        """As a chat template takes it."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text, "reasoning_content": self.reasoning}
        return message | ({"tool_calls": [_function_call(call) for call in self.calls]} if self.calls else {})

    @property
    def is_cut_off(self) -> bool:
        return any(not arguments.rstrip().endswith("}") for _, _, arguments in self.calls)


def _written_anew(arguments: str) -> str:
    """By a program with another order of keys, other spaces and escapes, and one kind of numbers."""
    try:
        value = json.loads(arguments, parse_float=lambda text: int(float(text)) if float(text).is_integer() else text)
    except ValueError:
        return arguments  # cut off
    return json.dumps(dict(reversed(list(value.items()))), indent=1) if isinstance(value, dict) else arguments


def _function_call(call: tuple[str, str, str]) -> Body:
    return {"id": call[0], "type": "function", "function": {"name": call[1], "arguments": call[2]}}


@dataclass
class Message:
    role: str
    texts: list[str] = field(default_factory=list)
    said: Said | None = None
    call: int = 0
    """Of a tool's result: the number of the call in the answer before."""


class Client:
    """One of the four. `head` is a recorded body up to its first question."""

    path = "/v1/chat/completions"
    limit = "max_tokens"

    def __init__(self, name: str, *, has_texts: bool = True) -> None:
        """`has_texts`: calls have one among their arguments; in some formats nothing bounds it."""
        self.name = name
        requests = json.loads((ROOT / "tests" / "data" / "clients" / f"{name}.json").read_text())["requests"]
        body = next(request["body"] for request in requests if request["step"] == "first_turn")
        self.head: Body = {key: value for key, value in body.items() if key not in {"stream", "stream_options"}}
        self.head["tools"].append(self.tool(TOOL, "Looks into a file or a folder.", call_schema(has_texts=has_texts)))

    def tool(self, name: str, about: str, schema: Body) -> Body:
        return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}

    def begun(self, question: str, folder: str, session: int) -> Body:
        """The head of a conversation. Folder and day stand behind three fifths of the longest text of the system's."""
        head = deepcopy(self.head)
        texts = self._system_texts(head)
        longest = max(texts, key=lambda part: len(part["text"]))
        at = longest["text"].index(".", len(longest["text"]) * 3 // 5) + 1
        about = f"\nWorking directory: {folder}\nToday's date is 2026-11-20.\n"
        longest["text"] = longest["text"][:at] + about + longest["text"][at:]
        self._set_system(head, texts)
        text = json.dumps(head)
        for old, new in ((RECORDED_QUESTION, question), (RECORDED_FOLDER, folder)):
            text = text.replace(old, json.dumps(new)[1:-1])
        body: Body = json.loads(text.replace("00000000-0000-4000-8000-", f"{session:08d}-0000-4000-8000-"))
        return body

    def set_role(self, head: Body, role: str) -> None:
        """Another system text in place of the client's own."""
        self._set_system(head, [{"type": self._system_texts(head)[0].get("type", "text"), "text": role}])

    def body(self, head: Body, messages: Sequence[Message], spelling: Spelling, *, calls: bool, limit: int) -> Body:
        raise NotImplementedError

    def said(self, answer: Mapping[str, Any]) -> Said:
        raise NotImplementedError

    def prompt(self, body: Body, model: TextModel) -> ChatPrompt:
        """What the server makes of it."""
        return prompt_of(self.path, body, model)

    def _system_texts(self, head: Body) -> list[Body]:
        return [{"text": message["content"]} for message in head["messages"] if message["role"] == "system"][:1]

    def _set_system(self, head: Body, texts: list[Body]) -> None:
        head["messages"][0]["content"] = texts[0]["text"]

    def _answers(
        self, messages: Sequence[Message], spelling: Spelling
    ) -> list[tuple[Message, Said | None, str]]:  # fmt: skip
        """The messages, their answers as this client sends them, and the ids of the calls that results belong to."""
        told, last, number = [], Said(""), 0
        for message in messages:
            said = None
            if message.said is not None:
                number += 1
                said = last = message.said.spelled(spelling, number)
            told.append((message, said, last.calls[message.call][0] if message.role == "tool" else ""))
        return told


def _halves(text: str, spelling: Spelling) -> list[str]:
    return [text[: len(text) // 2], text[len(text) // 2 :]] if spelling.split else [text]


class ChatClient(Client):
    """opencode and pi."""

    def __init__(self, name: str, *, has_texts: bool = True) -> None:
        super().__init__(name, has_texts=has_texts)
        self.limit = "max_completion_tokens" if name == "pi" else "max_tokens"

    def body(self, head: Body, messages: Sequence[Message], spelling: Spelling, *, calls: bool, limit: int) -> Body:
        own = []
        for message, said, call in self._answers(messages, spelling):
            if said is not None:
                own.append(self._assistant(said, spelling))
            elif message.role == "tool":
                own.append({"role": "tool", "content": message.texts[0], "tool_call_id": call})
            else:
                parts = [{"type": "text", "text": text} for text in message.texts]
                own.append({"role": message.role, "content": parts if len(parts) > 1 else message.texts[0]})
        choice = {"type": "function", "function": {"name": TOOL}} if calls else "none"
        return {**head, "messages": [*head["messages"], *own], self.limit: limit, "temperature": 0} | (
            {"tool_choice": choice} if head.get("tools") else {}
        )

    def _assistant(self, said: Said, spelling: Spelling) -> Body:
        content: Any = [{"type": "text", "text": text} for text in _halves(said.text, spelling)]
        message = {"role": "assistant", "content": content if spelling.split else said.text}
        if spelling.null and not said.text:
            message["content"] = None
        if said.reasoning:
            message["reasoning" if spelling.reasoning == "own" else "reasoning_content"] = said.reasoning
        if said.calls:
            message["tool_calls"] = [_function_call(call) for call in said.calls]
        return message

    def said(self, answer: Mapping[str, Any]) -> Said:
        message = answer["choices"][0]["message"]
        calls = [(call["id"], call["function"]["name"], call["function"]["arguments"])
                 for call in message.get("tool_calls") or ()]  # fmt: skip
        usage = answer["usage"]
        n_prompt, n_cached = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
        reasoning = message.get("reasoning_content") or ""
        return Said(message["content"] or "", reasoning, "", calls, n_prompt, n_prompt - n_cached)


class ClaudeCode(Client):
    path = "/v1/messages?beta=true"

    def tool(self, name: str, about: str, schema: Body) -> Body:
        return {"name": name, "description": about, "input_schema": schema}

    def _system_texts(self, head: Body) -> list[Body]:
        return [dict(part) for part in head["system"]]

    def _set_system(self, head: Body, texts: list[Body]) -> None:
        head["system"] = texts

    def body(self, head: Body, messages: Sequence[Message], spelling: Spelling, *, calls: bool, limit: int) -> Body:
        own: list[Body] = []
        for message, said, call in self._answers(messages, spelling):
            texts: list[Body] = [{"type": "text", "text": text} for text in message.texts]
            if said is not None:
                own.append({"role": "assistant", "content": self._assistant(said, spelling)})
                continue
            if message.role == "tool":
                texts = [{"tool_use_id": call, "type": "tool_result", "content": message.texts[0], "is_error": False}]
            role = "user" if message.role == "tool" else message.role
            if own and own[-1]["role"] == role == "user":
                own[-1]["content"] += texts
            else:
                own.append({"role": role, "content": texts})
        if own and own[-1]["role"] == "user":
            own[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        begun = deepcopy(head["messages"])
        if messages:  # as a text from the second request on
            begun = [{**m, "content": m["content"][0]["text"]} if m["role"] == "system" else m for m in begun]
        choice = {"type": "tool", "name": TOOL} if calls else {"type": "none"}
        return {**head, "messages": [*begun, *own], "max_tokens": limit, "temperature": 0} | (
            {"tool_choice": choice} if head.get("tools") else {}
        )

    def _assistant(self, said: Said, spelling: Spelling) -> Any:
        if spelling.merge and said.text and not (said.calls or said.reasoning or said.opaque):
            return said.text
        blocks: list[Body] = []
        if said.opaque:
            blocks.append({"type": "thinking", "thinking": "", "signature": said.opaque})
        elif said.reasoning:
            blocks.append({"type": "thinking", "thinking": said.reasoning, "signature": ""})
        if said.text or spelling.null:
            blocks += [{"type": "text", "text": text} for text in _halves(said.text, spelling)]
        for id_, name, arguments in said.calls:
            blocks.append({"type": "tool_use", "id": id_, "name": name, "input": json.loads(arguments)})
        return blocks

    def said(self, answer: Mapping[str, Any]) -> Said:
        by_kind: dict[str, list[Any]] = {"text": [], "thinking": [], "tool_use": []}
        for block in answer["content"]:
            by_kind[block["type"]].append(block)
        thinking = by_kind["thinking"]
        usage = answer["usage"]
        n_read = usage["input_tokens"] + usage.get("cache_creation_input_tokens", 0)
        return Said(
            "".join(block["text"] for block in by_kind["text"]),
            "".join(block["thinking"] or reasoning_of(block["signature"], 1 << 20) for block in thinking),
            thinking[0].get("signature", "") if thinking else "",
            [(call["id"], call["name"], json.dumps(call["input"])) for call in by_kind["tool_use"]],
            n_read + usage["cache_read_input_tokens"],
            n_read,
        )


class Codex(Client):
    path = "/v1/responses"

    def tool(self, name: str, about: str, schema: Body) -> Body:
        return {"type": "function", "name": name, "description": about, "strict": False, "parameters": schema}

    def _system_texts(self, head: Body) -> list[Body]:
        return [dict(head["input"][0]["content"][0])]

    def _set_system(self, head: Body, texts: list[Body]) -> None:
        head["input"][0]["content"] = texts

    def body(self, head: Body, messages: Sequence[Message], spelling: Spelling, *, calls: bool, limit: int) -> Body:
        own: list[Body] = []
        for message, said, call in self._answers(messages, spelling):
            if said is not None:
                own += self._items(said, spelling)
            elif message.role == "tool":
                own.append({"type": "function_call_output", "call_id": call, "output": message.texts[0]})
            else:
                texts = [{"type": "input_text", "text": text} for text in message.texts]
                role = "developer" if message.role == "system" else message.role
                own.append({"type": "message", "role": role, "content": texts})
        choice = {"type": "function", "name": TOOL} if calls else "none"
        return {**head, "input": [*head["input"], *own], "max_output_tokens": limit, "temperature": 0} | (
            {"tool_choice": choice} if head.get("tools") else {}
        )

    def _items(self, said: Said, spelling: Spelling) -> list[Body]:
        items: list[Body] = []
        if said.opaque:
            items.append({"type": "reasoning", "summary": [], "encrypted_content": said.opaque})
        elif said.reasoning:
            reasons = [{"type": "reasoning_text", "text": said.reasoning}]
            items.append({"type": "reasoning", "summary": [], "content": reasons})
        if said.text or spelling.null:
            parts = [{"type": "output_text", "text": text} for text in _halves(said.text, spelling)]
            content = said.text if spelling.merge else parts if said.text else []
            items.append({"type": "message", "role": "assistant", "content": content})
        for id_, name, arguments in said.calls:
            items.append({"type": "function_call", "name": name, "arguments": arguments, "call_id": id_})
        return items

    def said(self, answer: Mapping[str, Any]) -> Said:
        text, reasoning, opaque, calls = "", "", "", []
        for item in answer["output"]:
            match item["type"]:
                case "message":
                    text += "".join(part["text"] for part in item["content"])
                case "reasoning":
                    reasoning += "".join(part["text"] for part in item.get("content") or ())
                    opaque = item.get("encrypted_content") or ""
                case "function_call":
                    calls.append((item["call_id"], item["name"], item["arguments"]))
        usage = answer["usage"]
        n_prompt, n_cached = usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
        return Said(text, reasoning, opaque, calls, n_prompt, n_prompt - n_cached)


CLIENTS: Mapping[str, type[Client]] = {
    "claude_code": ClaudeCode, "codex": Codex, "opencode": ChatClient, "pi": ChatClient,
}  # fmt: skip
