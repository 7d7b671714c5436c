"""An answerer over a real engine, and what its tests share. Import the fixtures by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from luce.protocol import SamplingArgs
from luce.supervisor import Supervisor, SupervisorConfig
from luce.supervisor.http.answering.answer_events import (
    AnswerEvent,
    AnswerFinished,
    ChoiceFinished,
    ContentPiece,
    Progress,
    PromptLogprobs,
    ReasoningPiece,
    ToolCallPiece,
    Usage,
)
from luce.supervisor.http.answering.answerer import ChatAnswerer, ChatAnswering
from luce.supervisor.http.metrics import Metrics
from luce.supervisor.http.prompts.answer_request import AnswerRequest, ChatPrompt
from luce.supervisor.http.settings import ServeSettings
from luce.supervisor.text import TextModel

DEADLINE_S = 120.0
GREEDY = SamplingArgs(temperature=0)


def tool(name: str, argument: str, *values: str) -> dict[str, Any]:
    """With an argument of few values: a small model that has to write a text of its own may never end it."""
    parameters = {"type": "object", "properties": {argument: {"enum": list(values)}}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


READ = tool("read_file", "path", "README.md", "docs/index.md")
LIST = tool("list_folder", "folder", "docs", "src")


@dataclass
class Served:
    """One answer, whole."""

    events: list[AnswerEvent] = field(default_factory=list)
    choices: dict[int, ChoiceFinished] = field(default_factory=dict)
    progress: list[Progress] = field(default_factory=list)
    finished: AnswerFinished | None = None

    @property
    def choice(self) -> ChoiceFinished:
        assert list(self.choices) == [0]
        return self.choices[0]

    @property
    def usage(self) -> Usage:
        assert self.finished is not None
        return self.finished.usage


def take(served: Served, event: AnswerEvent) -> None:
    """Pieces must come before their choice's end, and the last event last."""
    assert served.finished is None
    if isinstance(event, Progress):
        served.progress.append(event)
    elif isinstance(event, AnswerFinished):
        served.finished = event
    elif isinstance(event, PromptLogprobs):
        assert all(isinstance(earlier, Progress) for earlier in served.events)
    else:
        assert event.choice not in served.choices
        if isinstance(event, ChoiceFinished):
            served.choices[event.choice] = event
    served.events.append(event)


def check_pieces(served: Served) -> None:
    """The pieces of each choice add up to its end."""
    for number, choice in served.choices.items():
        pieces = [event for event in served.events if isinstance(event, ContentPiece | ReasoningPiece | ToolCallPiece)]
        mine = [piece for piece in pieces if piece.choice == number]
        assert "".join(piece.text for piece in mine if isinstance(piece, ContentPiece)) == choice.content
        assert "".join(piece.text for piece in mine if isinstance(piece, ReasoningPiece)) == choice.reasoning
        calls: list[list[str]] = []
        for piece in mine:
            if isinstance(piece, ToolCallPiece):
                if piece.index == len(calls):
                    assert piece.id
                    assert piece.name
                    calls.append([piece.id, piece.name, ""])
                else:
                    assert (piece.id, piece.name) == ("", "")
                calls[piece.index][2] += piece.arguments
        assert calls == [[call.id, call.name, call.arguments] for call in choice.tool_calls]
        shown = [entry for piece in mine if isinstance(piece, ContentPiece) for entry in piece.logprobs]
        assert shown == list(choice.logprobs)


def tokens_of(choice: ChoiceFinished) -> list[int]:
    """REQUIRES: logprobs were asked for."""
    return [entry.chosen.token for entry in choice.logprobs]


def entries_of(choice: ChoiceFinished) -> list[list[tuple[int, float]]]:
    """As the engine tells them: the chosen token and the likeliest, with their logprobs."""
    return [[(each.token, each.logprob) for each in (entry.chosen, *entry.likeliest)] for entry in choice.logprobs]


async def read(answering: ChatAnswering) -> Served:
    served = Served()
    async for event in answering.events():
        take(served, event)
    assert served.finished is not None
    check_pieces(served)
    return served


async def serve(answerer: ChatAnswerer, ask: AnswerRequest) -> Served:
    async with asyncio.timeout(DEADLINE_S), answerer.open(ask) as answering:
        return await read(answering)


def chat(*messages: dict[str, Any] | str, **options: Any) -> AnswerRequest:
    """Twenty greedy tokens for the messages; texts are the user's. `prompt` has more of the prompt."""
    shaped = [{"role": "user", "content": message} if isinstance(message, str) else message for message in messages]
    prompt = ChatPrompt(messages=shaped, **options.pop("prompt", {}))
    return AnswerRequest(**{"prompt": prompt, "max_tokens": 20, "sampling": GREEDY, **options})


def system(text: Any) -> dict[str, Any]:
    return {"role": "system", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


@dataclass(frozen=True)
class Answering:
    answerer: ChatAnswerer
    supervisor: Supervisor
    text: TextModel


@asynccontextmanager
async def running(model: Path, *, settings: ServeSettings | None = None, **options: Any) -> AsyncIterator[Answering]:
    """An answerer with an engine of its own."""
    defaults = {"ctx": 2048, "pool": 8192, "lanes": 4, "threads": 1, "log_level": "warn", "restart_delay_s": 0.01}
    defaults["no_warmup"] = True
    defaults["seed"] = 1  # requests that bring none say the same each time
    config = SupervisorConfig(**{"model": model, **defaults, **options})
    async with Supervisor(config) as supervisor:
        text = await supervisor.text()
        answerer = ChatAnswerer(supervisor, text, settings or ServeSettings(), Metrics())
        yield Answering(answerer, supervisor, text)
