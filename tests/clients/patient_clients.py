"""Clients that wait as the real ones were seen to wait, in less time: what each takes for a sign of life, how long it
bears without one, how long in all, and how it asks again.

Knows streams of events, not what they say beyond what such a client looks at; starts no server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientResponse, ClientSession

from tests.clients.recorded import recorded

DEADLINE_S = 120.0


@dataclass(frozen=True)
class SentEvent:
    """One event as it stood in the stream; a comment has neither name nor data."""

    name: str
    data: str
    is_comment: bool

    def json(self) -> dict[str, Any]:
        value = json.loads(self.data)
        assert isinstance(value, dict)
        return value


class GaveUpError(Exception):
    """The client has lost its patience; `waited` says with what."""


@dataclass(frozen=True)
class PatientClient:
    name: str
    counts: Callable[[SentEvent], bool]
    """Whether it takes this for a sign of life."""
    is_last: Callable[[SentEvent], bool]
    bounds_total: bool = False
    """Whether it gives up after a while even with signs of life."""
    retries_streaming: bool = True
    answer_bound: str = "max_tokens"
    closes_first: bool = True
    """Whether the old connection is closed before it asks again."""

    @property
    def path(self) -> str:
        return recorded(self.name)["first_turn"].path

    def body(self, filler: str, **changes: Any) -> dict[str, Any]:
        """Its first turn, with a short answer and a longer message."""
        body = recorded(self.name)["first_turn"].body(**{self.answer_bound: 8})
        said = body["input" if "input" in body else "messages"]
        user = [message for message in said if message["role"] == "user"][-1]
        if isinstance(user["content"], str):
            user["content"] += filler
        else:
            user["content"][-1]["text"] += filler
        return {**body, **changes}

    def post(self, session: ClientSession, url: str, body: dict[str, Any]) -> Any:
        return session.post(url + self.path, json=body, headers=recorded(self.name)["first_turn"].headers)


@dataclass
class Reading:
    """What a client has seen of one stream."""

    client: PatientClient
    idle_s: float
    total_s: float | None = None
    events: list[SentEvent] = field(default_factory=list)

    async def read(self, response: ClientResponse, *, until: Callable[[Reading], bool] | None = None) -> None:
        """To the last event, or until the condition holds. Raises GaveUpError."""
        loop = asyncio.get_running_loop()
        ends_s = None if self.total_s is None or not self.client.bounds_total else loop.time() + self.total_s
        idle_ends_s = loop.time() + self.idle_s
        events = read_events(response)
        try:
            while True:
                async with asyncio.timeout_at(min(idle_ends_s, ends_s or idle_ends_s)):
                    event = await anext(events)
                self.events.append(event)
                if self.client.counts(event):
                    idle_ends_s = loop.time() + self.idle_s
                if self.client.is_last(event) or (until is not None and until(self)):
                    return
        except TimeoutError as error:
            raise GaveUpError(self.client.name) from error
        finally:
            await events.aclose()

    def counted(self) -> list[SentEvent]:
        return [event for event in self.events if self.client.counts(event)]


async def read_events(response: ClientResponse) -> AsyncGenerator[SentEvent, None]:
    """Each event and each comment of a stream; it may not end before its last one."""
    name, data = "", list[str]()
    async for raw in response.content:
        line = raw.decode().rstrip("\r\n")
        if line.startswith(":"):
            yield SentEvent("", "", is_comment=True)
        elif line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data.append(line.removeprefix("data: "))
        elif not line and data:
            yield SentEvent(name, "\n".join(data), is_comment=False)
            name, data = "", []
    raise AssertionError("the stream ended without its last event")


def counts_anything(event: SentEvent) -> bool:  # noqa: ARG001  comments, pings, empty chunks
    return True


CLAUDE_CODE = PatientClient(
    "claude_code",
    counts=counts_anything,
    is_last=lambda event: event.name == "message_stop",
    bounds_total=True,
    retries_streaming=False,
    closes_first=False,
)
CODEX = PatientClient(
    "codex",
    counts=lambda event: not event.is_comment,
    is_last=lambda event: event.name in {"response.completed", "response.incomplete"},
    answer_bound="max_output_tokens",
)
OPENCODE = PatientClient("opencode", counts=counts_anything, is_last=lambda event: event.data == "[DONE]")
PI = PatientClient(
    "pi",
    counts=counts_anything,
    is_last=lambda event: event.data == "[DONE]",
    answer_bound="max_completion_tokens",
)
CLIENTS = (CLAUDE_CODE, CODEX, OPENCODE, PI)


def usage_of(body: dict[str, Any]) -> tuple[int, int]:
    """Tokens of the prompt and how many of them were cached, of an answer that was not streamed or of its last part."""
    usage = body["usage"]
    if "cache_read_input_tokens" in usage:
        n_cached = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + n_cached + (usage.get("cache_creation_input_tokens") or 0), n_cached
    details = usage.get("prompt_tokens_details") or usage["input_tokens_details"]
    return usage.get("prompt_tokens", usage.get("input_tokens")), details["cached_tokens"]


def usage_of_stream(events: list[SentEvent]) -> tuple[int, int]:
    """The same of a stream that has come to its end."""
    found = (0, 0)
    for event in events:
        if event.is_comment or event.data == "[DONE]":
            continue
        value = event.json()
        holder = value.get("response") or value
        if isinstance(holder.get("usage"), dict) and holder["usage"].keys() != {"output_tokens"}:
            found = usage_of(holder)
    return found
