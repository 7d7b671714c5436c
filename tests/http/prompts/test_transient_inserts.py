"""Reminders, counters and system texts that programs put into a conversation and drop or change in the next turn: what
stands before them is not read again, whatever the kind of memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from luce.supervisor.http.prompts.rendering import Renderer
from luce.supervisor.text import TextModel
from tests.http.answering.sessions_of_clients import asked, n_cached
from tests.http.serving import CALL_S, Server

Message = dict[str, Any]

FAMILIES = ("qwen35", "gemma4", "qwen3")
NEAR = 24  # tokens: a mark stands at or before the insert's first, and its first words may be the same


def words(rng: random.Random, n: int) -> str:
    return " ".join(rng.choice(("file", "line", "code", "test", "path", "name", "value", "loop")) for _ in range(n))


def text(content: str) -> Message:
    return {"type": "text", "text": content}


def reminder(number: int) -> Message:
    return text(f"<system-reminder>\nTodo list, state {number}: {words(random.Random(number), 30)}\n</system-reminder>")


def tool_result(number: int, *more: Message) -> list[Message]:
    """A step of a chain, and what the program adds to it."""
    rng = random.Random(100 + number)
    call = {"type": "tool_use", "id": f"t{number}", "name": "read_file", "input": {"path": words(rng, 2)}}
    result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": words(rng, 200)}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result, *more]}]


def dropped(turn: int) -> list[Message]:
    """A reminder behind the user's own words, gone in the next turn."""
    rng = random.Random(1)
    head = [text(words(rng, 300)), *([reminder(1)] if turn == 0 else [])]
    return [{"role": "user", "content": head}, *(tool_result(1) if turn else [])]


def changed(turn: int) -> list[Message]:
    """One behind a tool's result, with another state each turn."""
    return [
        {"role": "user", "content": words(random.Random(2), 300)},
        *tool_result(1),
        *tool_result(2, reminder(turn)),
        *(tool_result(3) if turn else []),
    ]


def counter(turn: int) -> list[Message]:
    """A count of tokens as system text in the middle of the conversation."""
    return [
        {"role": "user", "content": words(random.Random(3), 300)},
        {"role": "system", "content": f"<total_tokens>{100000 - 700 * turn} tokens left</total_tokens>"},
        *(tool_result(1) if turn else []),
    ]


def moved(turn: int) -> list[Message]:
    """A system text that always stands behind the last message but one."""
    surroundings = {"role": "system", "content": f"Environment: {words(random.Random(4), 60)}"}
    steps = [{"role": "user", "content": words(random.Random(5), 300)}, *tool_result(1), *tool_result(2)]
    shown = steps[: 3 + 2 * turn]
    return [*shown[:-2], surroundings, *shown[-2:]]


@pytest.fixture(scope="module", params=FAMILIES)
def machine(request: pytest.FixtureRequest, test_models: Path) -> Iterator[tuple[Server, TextModel]]:
    model = test_models / f"{request.param}.gguf"
    server = Server(model, {"lanes": 1, "ubatch": 256}).start()
    text_model = TextModel(model)
    yield server, text_model
    server.stop()
    text_model.close()


@pytest.mark.parametrize("inserts", [dropped, changed, counter, moved])
def test_an_insert_that_changes_costs_no_more_than_the_rest_of_its_turn(
    machine: tuple[Server, TextModel], inserts: Callable[[int], list[Message]]
) -> None:
    server, model = machine
    texts = []
    for turn in range(2):
        body = {
            "model": "luce",
            "max_tokens": 2,
            "temperature": 0,
            "system": [text(f"You are an agent for {inserts.__name__}."), text(words(random.Random(9), 200))],
            "tools": [{"name": "read_file", "description": "Reads.", "input_schema": {"type": "object"}}],
            "messages": inserts(turn),
        }
        texts.append(Renderer(model).render(asked("claude_code", body, model).prompt).ids)
        answer = httpx.post(f"{server.url}/v1/messages", json=body, timeout=CALL_S)
        answer.raise_for_status()
        usage = answer.json()["usage"]
    shared = next(n for n, (a, b) in enumerate(zip(*texts, strict=False)) if a != b)
    assert shared > 400
    assert n_cached(usage) >= shared - NEAR, (shared, len(texts[0]), usage)
