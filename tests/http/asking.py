"""One question in the words of each API, and its answer, streamed or whole, in the same words for all. Knows no test.

What a stream says piece by piece has to be what it says at its end, where the API has both."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2 as httpx
import pytest

from luce.supervisor.http.transport.schema_notes import HEADER

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
APIS = (CHAT, RESPONSES, MESSAGES, COMPLETIONS)
TALKING = (CHAT, RESPONSES, MESSAGES)
"""Those with messages and tools."""
in_each_api = pytest.mark.parametrize(
    ("path", "streams"),
    [pytest.param(path, streams, id=path[4:] + " streamed" * streams) for path in APIS for streams in (False, True)],
)
in_each_talking_api = pytest.mark.parametrize(
    ("path", "streams"),
    [pytest.param(path, streams, id=path[4:] + " streamed" * streams) for path in TALKING for streams in (False, True)],
)

_FINISHES = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}


@dataclass
class Answer:
    status: int
    notes: list[dict[str, str]]
    """Of the schemas: the header."""
    events: list[dict[str, Any]]
    """As they came; of what is not streamed one."""
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    """Names and arguments: their value, or the text where it is no JSON."""
    ids: list[str] = field(default_factory=list)
    """Of the calls."""
    finish: str = ""
    """In the words of chat completions."""
    error: dict[str, Any] = field(default_factory=dict)
    n_prompt: int = 0
    n_cached: int = 0


def question(path: str, asked: str | Sequence[Any] = "Who are you?", **fields: Any) -> dict[str, Any]:
    """`asked`: what the user says, or the messages (Responses: items; completions: the text alone)."""
    turns = [{"role": "user", "content": asked}] if isinstance(asked, str) else list(asked)
    name = {RESPONSES: "input", COMPLETIONS: "prompt"}.get(path, "messages")
    limit = fields.pop("limit", 120)
    bound = "max_output_tokens" if path == RESPONSES else "max_tokens"
    return {name: asked if path == COMPLETIONS else turns, bound: limit, "temperature": 0, **fields}


def tools(path: str, schemas: dict[str, Any], *, strict: bool = False) -> dict[str, Any]:
    """The field, with a tool for each schema."""
    listed: list[dict[str, Any]] = []
    for name, schema in schemas.items():
        said = {"name": name, "strict": strict, ("input_schema" if path == MESSAGES else "parameters"): schema}
        if path == CHAT:
            said = {"type": "function", "function": said}
        listed.append({"type": "function", **said} if path == RESPONSES else said)
    return {"tools": listed}


def demanded(path: str, name: str = "") -> dict[str, Any]:
    """The field that demands a call: of this tool, or of any."""
    if path == MESSAGES:
        return {"tool_choice": {"type": "tool", "name": name} if name else {"type": "any"}}
    named: dict[str, Any] = {"type": "function", **({"function": {"name": name}} if path == CHAT else {"name": name})}
    return {"tool_choice": named if name else "required"}


def answered_by(path: str, schema: Any, *, strict: bool = False) -> dict[str, Any]:
    """The field that gives the answer its schema."""
    form = {"type": "json_schema", "name": "x", "strict": strict, "schema": schema}
    if path == RESPONSES:
        return {"text": {"format": form}}
    if path == MESSAGES:
        return {"output_config": {"format": form}}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


def call(path: str, id_: str, name: str, arguments: Any) -> dict[str, Any]:
    """An earlier message or item. `arguments`: their text; of `/v1/messages` the value, where the text has one."""
    if path == RESPONSES:
        return {"type": "function_call", "call_id": id_, "name": name, "arguments": arguments}
    if path == MESSAGES:
        block = {"type": "tool_use", "id": id_, "name": name, "input": value_of(arguments)}
        return {"role": "assistant", "content": [block]}
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": id_, "type": "function", "function": function}]}


def result(path: str, id_: str, content: Any, **fields: Any) -> dict[str, Any]:
    if path == RESPONSES:
        return {"type": "function_call_output", "call_id": id_, "output": content}
    if path == MESSAGES:
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id_, "content": content, **fields}]}
    return {"role": "tool", "tool_call_id": id_, "content": content}


def ask(url: str, path: str, body: dict[str, Any] | bytes, *, streams: bool = False) -> Answer:
    """`body` of bytes says itself whether it streams."""
    if isinstance(body, dict):
        counted = {"stream_options": {"include_usage": True}} if streams and path in {CHAT, COMPLETIONS} else {}
        body = json.dumps({**body, "stream": streams, **counted}).encode()
    told = httpx.post(url + path, content=body, headers={"Content-Type": "application/json"}, timeout=120)
    notes = json.loads(told.headers.get(HEADER, "[]"))
    if told.status_code != 200:
        return Answer(told.status_code, notes, [], error=told.json()["error"])
    if not streams:
        return _whole(path, Answer(200, notes, [strict_json(told.text)]))
    assert told.headers["Content-Type"].startswith("text/event-stream")
    lines = (line.removeprefix("data: ") for line in told.text.splitlines() if line.startswith("data: "))
    return _streamed(path, Answer(200, notes, [strict_json(line) for line in lines if line != "[DONE]"]))


def answered(url: str, path: str, body: dict[str, Any] | bytes, *, streams: bool = False) -> Answer:
    """One that has to be given."""
    answer = ask(url, path, body, streams=streams)
    assert answer.status == 200, answer.error
    assert not answer.error
    return answer


def strict_json(text: str) -> Any:
    """Of a client that takes only what JSON has."""
    return json.loads(text, parse_constant=pytest.fail)


def value_of(arguments: Any) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, TypeError, RecursionError):
        return arguments


def _whole(path: str, answer: Answer) -> Answer:
    (body,) = answer.events
    _count(answer, body)
    if path == RESPONSES:
        return _of_items(answer, body)
    if path == MESSAGES:
        return _of_blocks(answer, body["content"], str(body["stop_reason"]))
    choice = body["choices"][0]
    message = choice.get("message", choice)
    answer.content = message.get("content") or message.get("text") or ""
    answer.reasoning = message.get("reasoning_content") or ""
    for each in message.get("tool_calls") or ():
        answer.ids.append(each["id"])
        answer.calls.append((each["function"]["name"], value_of(each["function"]["arguments"])))
    answer.finish = str(choice["finish_reason"])
    return answer


def _streamed(path: str, answer: Answer) -> Answer:
    for event in answer.events:
        failed = event.get("error") or (event.get("response") or {}).get("error")
        answer.error = failed or answer.error
        for holder in (event, event.get("message"), event.get("response")):
            if isinstance(holder, dict):
                _count(answer, holder)
    if path == RESPONSES:
        final = answer.events[-1]["response"]
        _of_items(answer, final)
        said = {"output_text": "", "reasoning_text": "", "function_call_arguments": ""}
        for event in answer.events:
            kind = event["type"].removeprefix("response.").removesuffix(".delta")
            if event["type"].endswith(".delta") and kind in said:
                said[kind] += event["delta"]
        arguments = "".join(item["arguments"] for item in final["output"] if item["type"] == "function_call")
        assert said == {
            "output_text": answer.content,
            "reasoning_text": answer.reasoning,
            "function_call_arguments": arguments,
        }
        return answer
    return _of_block_events(answer) if path == MESSAGES else _of_chunks(answer)


def _of_items(answer: Answer, response: dict[str, Any]) -> Answer:
    for item in response["output"]:
        if item["type"] == "function_call":
            answer.ids.append(item["call_id"])
            answer.calls.append((item["name"], value_of(item["arguments"])))
        elif item["type"] == "message":
            answer.content += "".join(part["text"] for part in item["content"])
        elif item["type"] == "reasoning":
            answer.reasoning += "".join(part["text"] for part in item["content"])
    ends = "tool_calls" if answer.calls else "stop"
    answer.finish = {"completed": ends, "incomplete": "length"}.get(response["status"], response["status"])
    return answer


def _of_blocks(answer: Answer, blocks: Sequence[dict[str, Any]], reason: str) -> Answer:
    for block in blocks:
        if block["type"] == "tool_use":
            answer.ids.append(block["id"])
            answer.calls.append((block["name"], block["input"]))
        answer.content += block.get("text", "")
        answer.reasoning += block.get("thinking", "")
    answer.finish = _FINISHES.get(reason, reason)
    return answer


def _of_block_events(answer: Answer) -> Answer:
    blocks: list[dict[str, Any]] = []
    reason = ""
    for event in answer.events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"]})
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(blocks) - 1, "one block is open at a time"
            delta, block = event["delta"], blocks[-1]
            if "partial_json" in delta:
                block["arguments"] = block.get("arguments", "") + delta["partial_json"]
            for name in ("text", "thinking"):
                if name in delta:
                    block[name] += delta[name]
        elif event["type"] == "message_delta":
            reason = str(event["delta"]["stop_reason"])
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = value_of(block.get("arguments") or "{}")
    return _of_blocks(answer, blocks, reason)


def _of_chunks(answer: Answer) -> Answer:
    calls: list[list[str]] = []
    for choice in (choice for event in answer.events for choice in event.get("choices") or ()):
        delta = choice.get("delta") or {}
        answer.content += delta.get("content") or choice.get("text") or ""
        answer.reasoning += delta.get("reasoning_content") or ""
        for piece in delta.get("tool_calls") or ():
            if piece["index"] == len(calls):
                answer.ids.append(piece["id"])
                calls.append([piece["function"]["name"], ""])
            calls[piece["index"]][1] += piece["function"].get("arguments") or ""
        answer.finish = choice.get("finish_reason") or answer.finish
    answer.calls = [(name, value_of(arguments)) for name, arguments in calls]
    return answer


def _count(answer: Answer, holder: dict[str, Any]) -> None:
    """Anthropic's API counts cached tokens beside the prompt's, OpenAI's among them."""
    usage = holder.get("usage") or {}
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    if "cache_read_input_tokens" in usage:
        answer.n_cached = usage["cache_read_input_tokens"]
        answer.n_prompt = usage["input_tokens"] + answer.n_cached
    elif "prompt_tokens" in usage or details:
        answer.n_cached = details.get("cached_tokens", 0)
        answer.n_prompt = usage.get("prompt_tokens", usage.get("input_tokens", 0))
