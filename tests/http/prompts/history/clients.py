"""Clients of the four APIs, as programs that use the official SDKs keep a conversation: what they send, how they put a
stream together, and how they append what they got. Knows no test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI, LengthFinishReasonError

_PARAMETERS = {"type": "object", "properties": {}}


@dataclass(frozen=True)
class Asked:
    """How the model is to answer."""

    grammar: str
    n_most: int
    """Tokens."""
    streams: bool


@dataclass(frozen=True)
class Counts:
    """Tokens of a prompt, and those that the cache served."""

    n_prompt: int
    n_cached: int


class Client(Protocol):
    """Keeps one conversation."""

    def __init__(self, sdks: Sdks) -> None: ...
    def say(self, text: str) -> None: ...
    def begin(self, text: str) -> bool:
        """The next answer. False: this API begins a new one all the same."""

    def give_results(self, text: str) -> bool:
        """Of the last answer's calls. False: it has none."""

    async def answer(self, asked: Asked) -> Counts:
        """Sends the conversation and appends the answer. Raises the SDK's errors."""


@dataclass(frozen=True)
class Sdks:
    openai: AsyncOpenAI
    anthropic: AsyncAnthropic

    @classmethod
    def of(cls, url: str, timeout_s: float) -> Sdks:
        options: dict[str, Any] = {"api_key": "none", "max_retries": 0, "timeout": timeout_s}
        return cls(AsyncOpenAI(base_url=f"{url}/v1", **options), AsyncAnthropic(base_url=url, **options))

    async def close(self) -> None:
        await self.openai.close()
        await self.anthropic.close()


def _by(grammar: str) -> Mapping[str, Any]:
    return {"grammar": grammar, "seed": 1}


class ChatClient:
    def __init__(self, sdks: Sdks) -> None:
        self._chats = sdks.openai.chat.completions
        self._messages: list[Any] = []

    def say(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})

    def begin(self, text: str) -> bool:
        self._messages.append({"role": "assistant", "content": text})
        return True

    def give_results(self, text: str) -> bool:
        calls = self._messages[-1].tool_calls or ()
        self._messages += [{"role": "tool", "tool_call_id": call.id, "content": text} for call in calls]
        return bool(calls)

    async def answer(self, asked: Asked) -> Counts:
        options: dict[str, Any] = {
            "model": "m",
            "messages": self._messages,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": _PARAMETERS}}],
            "max_completion_tokens": asked.n_most,
            "extra_body": _by(asked.grammar),
        }
        if asked.streams:
            completion: Any = await self._streamed(options)
        else:
            completion = await self._chats.create(**options)
        self._messages.append(completion.choices[0].message)
        usage = completion.usage
        return Counts(usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens)

    async def _streamed(self, options: dict[str, Any]) -> Any:
        async with self._chats.stream(**options, stream_options={"include_usage": True}) as stream:
            try:
                return await stream.get_final_completion()
            except LengthFinishReasonError as cut:
                return cut.completion


class ResponsesClient:
    """Sends its items with each turn."""

    _refers_back = False

    def __init__(self, sdks: Sdks) -> None:
        self._responses = sdks.openai.responses
        self._items: list[Any] = []
        self._last: Any = None

    def say(self, text: str) -> None:
        self._items.append({"role": "user", "content": text})

    def begin(self, text: str) -> bool:
        self._items.append({"role": "assistant", "content": text})
        return False

    def give_results(self, text: str) -> bool:
        ids = [item.call_id for item in self._last.output if item.type == "function_call"]
        self._items += [{"type": "function_call_output", "call_id": id_, "output": text} for id_ in ids]
        return bool(ids)

    async def answer(self, asked: Asked) -> Counts:
        options: dict[str, Any] = {
            "model": "m",
            "input": self._items,
            "tools": [{"type": "function", "name": "f", "parameters": _PARAMETERS, "strict": False}],
            "max_output_tokens": asked.n_most,
            "extra_body": _by(asked.grammar),
        }
        if self._refers_back and self._last is not None:
            options["previous_response_id"] = self._last.id
        if asked.streams:
            async for event in await self._responses.create(**options, stream=True):
                if event.type in {"response.completed", "response.incomplete"}:
                    self._last = event.response
        else:
            self._last = await self._responses.create(**options)
        self._items = [] if self._refers_back else [*self._items, *self._last.output]
        usage = self._last.usage
        return Counts(usage.input_tokens, usage.input_tokens_details.cached_tokens)


class ReferringClient(ResponsesClient):
    """Sends what is new, and the id of the response before."""

    _refers_back = True


class MessagesClient:
    def __init__(self, sdks: Sdks) -> None:
        self._api = sdks.anthropic.messages
        self._messages: list[Any] = []

    def say(self, text: str) -> None:
        last = self._messages[-1] if self._messages else None
        if last is not None and last["role"] == "user":  # behind results
            last["content"].append({"type": "text", "text": text})
        else:
            self._messages.append({"role": "user", "content": text})

    def begin(self, text: str) -> bool:
        self._messages.append({"role": "assistant", "content": text})
        return True

    def give_results(self, text: str) -> bool:
        uses = [block for block in self._messages[-1]["content"] if block.type == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": use.id, "content": text} for use in uses]
        if results:
            self._messages.append({"role": "user", "content": results})
        return bool(results)

    async def answer(self, asked: Asked) -> Counts:
        options: dict[str, Any] = {
            "model": "m",
            "messages": self._messages,
            "tools": [{"name": "f", "input_schema": _PARAMETERS}],
            "max_tokens": asked.n_most,
            "extra_body": _by(asked.grammar),
        }
        if asked.streams:
            async with self._api.stream(**options) as stream:
                message: Any = await stream.get_final_message()
        else:
            message = await self._api.create(**options)
        self._messages.append({"role": "assistant", "content": message.content})
        n_cached = message.usage.cache_read_input_tokens
        return Counts(message.usage.input_tokens + n_cached, n_cached)


class CompletionClient:
    """Goes on from its own text."""

    def __init__(self, sdks: Sdks) -> None:
        self._completions = sdks.openai.completions
        self._text = ""

    def say(self, text: str) -> None:
        self._text += text + "<|im_end|>"  # where it ends, tokens end

    def begin(self, text: str) -> bool:
        self._text += text
        return True

    def give_results(self, text: str) -> bool:
        del text
        return False

    async def answer(self, asked: Asked) -> Counts:
        options: dict[str, Any] = {
            "model": "m",
            "prompt": self._text,
            "max_tokens": asked.n_most,
            "extra_body": _by(asked.grammar),
        }
        usage: Any = None
        if asked.streams:
            chunks = await self._completions.create(**options, stream=True, stream_options={"include_usage": True})
            async for chunk in chunks:
                self._text += "".join(choice.text for choice in chunk.choices)
                usage = chunk.usage or usage
        else:
            completion = await self._completions.create(**options)
            self._text += completion.choices[0].text
            usage = completion.usage
        return Counts(usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens)


CLIENTS: Sequence[type[Client]] = (ChatClient, ResponsesClient, ReferringClient, MessagesClient, CompletionClient)
