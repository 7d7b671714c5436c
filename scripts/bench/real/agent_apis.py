"""A conversation with tools in each API's words, and what an answer to it said and cost. Conversations are kept in the
shapes of OpenAI's chat completions. Knows no server's address and nothing of what is measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Body = dict[str, Any]
Message = Mapping[str, Any]


@dataclass(frozen=True)
class Said:
    text: str
    calls: Sequence[tuple[str, str, str]]
    """Id, name and arguments of each."""
    n_prompt: int
    n_cached: int
    """Of the prompt: tokens that were not read again."""
    n_written: int

    @property
    def message(self) -> Body:
        """As the next request has it."""
        message: Body = {"role": "assistant", "content": self.text}
        calls = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id_, name, arguments in self.calls
        ]
        return message | ({"tool_calls": calls} if calls else {})


@dataclass(frozen=True)
class Api:
    name: str
    path: str
    body: Callable[[Sequence[Message], Sequence[Message], int], Body]
    """Of messages, tools (name, description, parameters) and a limit in tokens."""
    said: Callable[[Message], Said]


def _chat_body(messages: Sequence[Message], tools: Sequence[Message], limit: int) -> Body:
    return {"messages": messages, "max_tokens": limit} | (
        {"tools": [{"type": "function", "function": tool} for tool in tools]} if tools else {}
    )


def _chat_said(answer: Message) -> Said:
    message, usage = answer["choices"][0]["message"], answer["usage"]
    made = [(call["id"], call["function"]) for call in message.get("tool_calls") or ()]
    calls = [(id_, function["name"], function["arguments"]) for id_, function in made]
    n_cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Said(message["content"] or "", calls, usage["prompt_tokens"], n_cached, usage["completion_tokens"])


def _responses_body(messages: Sequence[Message], tools: Sequence[Message], limit: int) -> Body:
    items: list[Body] = []
    for message in messages:
        if message["role"] == "tool":
            output = message["content"]
            items.append({"type": "function_call_output", "call_id": message["tool_call_id"], "output": output})
            continue
        if message["content"]:
            items.append({"role": message["role"], "content": message["content"]})
        calls = message.get("tool_calls") or ()
        items += [{"type": "function_call", "call_id": call["id"], **call["function"]} for call in calls]
    body: Body = {"model": "default", "input": items, "max_output_tokens": limit, "store": False}
    return body | ({"tools": [{"type": "function", "strict": False, **tool} for tool in tools]} if tools else {})


def _responses_said(answer: Message) -> Said:
    usage = answer["usage"]
    parts = [part for item in answer["output"] if item["type"] == "message" for part in item["content"]]
    made = [item for item in answer["output"] if item["type"] == "function_call"]
    return Said(
        "".join(part["text"] for part in parts),
        [(item["call_id"], item["name"], item["arguments"]) for item in made],
        usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"],
    )  # fmt: skip


def _messages_body(messages: Sequence[Message], tools: Sequence[Message], limit: int) -> Body:
    n_system = next((n for n, message in enumerate(messages) if message["role"] != "system"), 0)
    turns: list[Body] = []
    for message in messages[n_system:]:
        role = "assistant" if message["role"] == "assistant" else "user"
        blocks: list[Body] = []
        if message["role"] == "tool":
            result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
            blocks.append(result)
        elif message["content"]:
            blocks.append({"type": "text", "text": message["content"]})
        for call in message.get("tool_calls") or ():
            function = call["function"]
            block = {"type": "tool_use", "id": call["id"], "name": function["name"]}
            blocks.append({**block, "input": json.loads(function["arguments"])})
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    system = "\n\n".join(message["content"] for message in messages[:n_system])
    body: Body = {"model": "default", "system": system, "messages": turns, "max_tokens": limit}
    shown = [
        {"name": tool["name"], "description": tool.get("description", ""), "input_schema": tool["parameters"]}
        for tool in tools
    ]
    return body | ({"tools": shown} if shown else {})


def _messages_said(answer: Message) -> Said:
    usage = answer["usage"]
    n_cached = usage["cache_read_input_tokens"]
    n_prompt = usage["input_tokens"] + n_cached + usage.get("cache_creation_input_tokens", 0)
    blocks = answer["content"]
    return Said(
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        [(each["id"], each["name"], json.dumps(each["input"])) for each in blocks if each["type"] == "tool_use"],
        n_prompt, n_cached, usage["output_tokens"],
    )  # fmt: skip


def _completions_body(messages: Sequence[Message], tools: Sequence[Message], limit: int) -> Body:
    """What programs without a template send: turns behind their roles, calls in words."""
    shown = [f"tools: {json.dumps(tools)}"] if tools else []
    for message in messages:
        called = "".join(f"\n{json.dumps(call['function'])}" for call in message.get("tool_calls") or ())
        shown.append(f"{message['role']}: {message['content'] or ''}{called}")
    return {"model": "default", "prompt": "\n\n".join([*shown, "assistant:"]), "max_tokens": limit}


def _completions_said(answer: Message) -> Said:
    usage = answer["usage"]
    n_cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Said(answer["choices"][0]["text"], [], usage["prompt_tokens"], n_cached, usage["completion_tokens"])


CHAT = Api("chat completions", "/v1/chat/completions", _chat_body, _chat_said)
TOOL_APIS = (
    CHAT,
    Api("responses", "/v1/responses", _responses_body, _responses_said),
    Api("messages", "/v1/messages", _messages_body, _messages_said),
)
APIS = (*TOOL_APIS, Api("completions", "/v1/completions", _completions_body, _completions_said))
