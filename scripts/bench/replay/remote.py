"""Plays the prompts of a replay to a server behind a URL, which may be anybody's, by OpenAI's or Anthropic's API.

A server cannot be started afresh, so each pass gets a text that no other has, at the very prefix of the system
prompt: one for all requests of a warm pass, another one for each request of a cold one. Lengths and cached counts are
what the server says of them.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout

from scripts.bench.replay.conversation import Message
from scripts.bench.replay.prompts import Prompt
from scripts.bench.replay.run import WARM_UP_TIMEOUT_S, Served

Api = Literal["openai", "anthropic"]
PATHS: Mapping[Api, str] = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}


@dataclass
class Heard:
    """What has come of one stream."""

    first_s: float | None = None
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    is_complete: bool = False
    failure: str = ""

    def hear(self, text: str) -> None:
        if text and self.first_s is None:
            self.first_s = time.perf_counter()
        self.text += text


@dataclass(frozen=True)
class HttpTarget:
    url: str
    api: Api
    model: str
    session: ClientSession
    mark: Callable[[], str]
    """What each system prompt begins with."""
    headers: Mapping[str, str]

    async def ask(self, prompt: Prompt, max_tokens: int) -> Served:
        return await self.send(prompt.messages, prompt.tools, max_tokens)

    async def send(self, messages: Sequence[Message], tools: Sequence[Message], max_tokens: int) -> Served:
        """The request's failure is a Served too."""
        marked = [{**messages[0], "content": f"[{self.mark()}]\n{messages[0]['content']}"}, *messages[1:]]
        to_body, hear = (openai_body, hear_openai) if self.api == "openai" else (anthropic_body, hear_anthropic)
        body = {"model": self.model, "stream": True, "temperature": 0, "ignore_eos": True, "max_tokens": max_tokens}
        heard = Heard()
        started_s = time.perf_counter()
        try:
            request = self.session.post(
                self.url + PATHS[self.api], json={**body, **to_body(marked, tools)}, headers=self.headers
            )
            async with request as response:
                await listen(response, heard, hear)
        except (ClientError, TimeoutError) as error:
            heard.failure = f"{type(error).__name__}: {error}"
        total_s = time.perf_counter() - started_s
        return served(heard, total_s if heard.first_s is None else heard.first_s - started_s, total_s)


async def listen(response: ClientResponse, heard: Heard, hear: Callable[[Heard, dict[str, Any]], None]) -> None:
    if response.status != 200:
        heard.failure = f"status {response.status}: {(await response.text())[:300]}"
        return
    async for line in response.content:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if event.get("error"):
                heard.failure = json.dumps(event["error"])[:300]
            hear(heard, event)
        elif line.startswith(b"data: [DONE]"):
            heard.is_complete = True


def served(heard: Heard, ttft_s: float, total_s: float) -> Served:
    """Tokens are not told: the text's bytes stand for them, so that answers can be compared."""
    usage = heard.usage
    if "prompt_tokens" in usage:
        n_prompt = usage["prompt_tokens"]
        n_cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    else:
        n_cached = usage.get("cache_read_input_tokens") or 0
        n_prompt = usage.get("input_tokens", 0) + n_cached + (usage.get("cache_creation_input_tokens") or 0)
    told = usage.get("luce") or {}
    tier, miss = str(told.get("cache_tier", "none")), str(told.get("cache_miss", "none"))
    result = Served(ttft_s, total_s, n_prompt, n_cached, tier, miss, tuple(heard.text.encode()))
    if heard.failure or not heard.is_complete:
        return replace(result, failure=heard.failure or "internal: the stream ended without its last event")
    return result


def openai_body(messages: Sequence[Message], tools: Sequence[Message]) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": list(messages), "stream_options": {"include_usage": True}}
    return {**body, "tools": list(tools)} if tools else body


def hear_openai(heard: Heard, event: dict[str, Any]) -> None:
    heard.usage = event.get("usage") or heard.usage
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        heard.hear((delta.get("reasoning_content") or "") + (delta.get("content") or ""))
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            heard.hear((function.get("name") or "") + (function.get("arguments") or ""))


def anthropic_body(messages: Sequence[Message], tools: Sequence[Message]) -> dict[str, Any]:
    """The first message is the system prompt; results of tools go into the user's turn."""
    turns: list[dict[str, Any]] = []
    for message in messages[1:]:
        role, blocks = _blocks(message)
        if turns and turns[-1]["role"] == role and role == "user":
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    body: dict[str, Any] = {"system": messages[0]["content"], "messages": turns}
    if tools:
        body["tools"] = [
            {
                "name": tool["function"]["name"],
                "description": tool["function"].get("description", ""),
                "input_schema": tool["function"].get("parameters") or {"type": "object"},
            }
            for tool in tools
        ]
    return body


def _blocks(message: Message) -> tuple[str, list[dict[str, Any]]]:
    content = message.get("content") or ""
    if message["role"] == "tool":
        return "user", [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}]
    blocks: list[dict[str, Any]] = [{"type": "text", "text": content}] if content else []
    for call in message.get("tool_calls", ()):
        function = call["function"]
        arguments = json.loads(function["arguments"])
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments})
    return message["role"], blocks


def hear_anthropic(heard: Heard, event: dict[str, Any]) -> None:
    message = event.get("message") or event
    heard.usage |= {name: value for name, value in (message.get("usage") or {}).items() if value is not None}
    block, delta = event.get("content_block") or {}, event.get("delta") or {}
    heard.hear(block.get("name") or "")
    heard.hear((delta.get("thinking") or "") + (delta.get("text") or "") + (delta.get("partial_json") or ""))
    heard.is_complete = heard.is_complete or event.get("type") == "message_stop"


@asynccontextmanager
async def http_target(
    url: str, api: Api, *, is_warm: bool, key: str, model: str, timeout_s: float
) -> AsyncIterator[HttpTarget]:
    """For one pass. The server is asked once before it: a first call pays for what later ones do not. Raises
    ConnectionError where it gives no answer."""
    shared = secrets.token_hex(8)
    headers = {"Authorization": f"Bearer {key}", "x-api-key": key, "anthropic-version": "2023-06-01"}
    async with ClientSession(timeout=ClientTimeout(total=timeout_s)) as session:
        target = HttpTarget(
            url.rstrip("/"), api, model, session, lambda: shared if is_warm else secrets.token_hex(8), headers
        )
        hello = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
        async with asyncio.timeout(WARM_UP_TIMEOUT_S):
            first = await target.send(hello, (), 8)
        if not first.ok:
            raise ConnectionError(f"{url}: {first.failure}")
        yield target
