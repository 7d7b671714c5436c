"""What the library keeps of earlier prompts (native/llama/text/text_cache.h) changes none: a conversation that goes on,
is edited or comes back gets what it would get for the first time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.text import TemplateError, TextModel

from .text_models import Forgetful, tool

Message = dict[str, Any]

TOOLS = [tool("read_file", path="string", line="integer"), tool("write_file", path="string")]
WORDS = ["file", "def", "the", "=", "(", "\n", "'name'", "/a/b.py", "42", "<think>", "</think>", "é漢", "{}", '"', "\\"]

TELLING = (
    "Qwen-Qwen3-0.6B", "Qwen3.5-4B", "deepseek-ai-DeepSeek-V4", "google-gemma-4-31B-it", "openai-gpt-oss-120b",
    "mistralai-Ministral-3-14B-Reasoning-2512", "Mistral-Small-3.2-24B-Instruct-2506", "Kimi-K2-Thinking",
)  # fmt: skip
"""Of each way to render: llama.cpp's handlers that look at messages and those that do not."""


def words(rng: random.Random, n: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(n))


def conversation(rng: random.Random, *, calls: bool) -> list[Message]:
    messages: list[Message] = [{"role": "system", "content": words(rng, 12)}] if rng.random() < 0.7 else []
    n_calls = 0
    for _ in range(rng.randint(2, 4)):
        parts = [{"type": "text", "text": words(rng, 3)} for _ in range(2)]
        messages.append({"role": "user", "content": parts if rng.random() < 0.2 else words(rng, rng.randint(1, 9))})
        for _ in range(rng.randint(0, 3) if calls else 0):
            made = []
            for _ in range(rng.randint(1, 2)):
                n_calls += 1
                arguments = json.dumps({"path": words(rng, 2), "line": n_calls, "x": [1, None, {"a": True}]})
                function = {"name": "read_file", "arguments": arguments}
                made.append({"id": f"call{n_calls:05d}", "type": "function", "function": function})
            messages.append(answer(rng, words(rng, 4) if rng.random() < 0.6 else "") | {"tool_calls": made})
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": words(rng, 5)} for call in made]
        messages.append(answer(rng, words(rng, 5)))
    return [*messages, {"role": "user", "content": words(rng, 4)}]


def answer(rng: random.Random, content: str) -> Message:
    reasoning = {"reasoning_content": words(rng, 4)} if rng.random() < 0.5 else {}
    return {"role": "assistant", "content": content, **reasoning}


def steps(rng: random.Random, whole: Sequence[Message]) -> Iterator[list[Message]]:
    """As a client sends them: turn by turn, then with a message edited or gone, and once more as it was."""
    ends = [end for end in range(1, len(whole) + 1) if whole[end - 1]["role"] in {"user", "tool"}]
    for end in ends:
        yield list(whole[:end])
    for _ in range(2):
        changed = list(whole)
        at = rng.randrange(len(changed))
        changed[at] = {**changed[at], "content": words(rng, 3)}
        yield changed
    yield list(whole[1:])
    yield list(whole)


def told(model: TextModel, messages: Sequence[Message], **options: Any) -> tuple[Any, ...] | str:
    try:
        chat = model.render(messages, **options)
    except TemplateError as error:
        return str(error)
    try:
        return chat.prompt, bytes(chat.tokens), chat.marks, chat.generation_prompt, chat.grammar, chat.text_spans
    finally:
        chat.close()


def compare(model: TextModel, reference: TextModel, rng: random.Random, *, calls: bool) -> int:
    n_prompts = 0
    for messages in steps(rng, conversation(rng, calls=calls)):
        options: dict[str, Any] = {"tools": TOOLS} if calls else {}
        if rng.random() < 0.3:
            options["enable_thinking"] = rng.random() < 0.5
        expected = told(reference, messages, **options)
        assert told(model, messages, **options) == expected
        n_prompts += not isinstance(expected, str)
    return n_prompts


def test_real_templates_give_the_same_prompts(
    tiny_model: Path, llama_templates_dir: Path, request: pytest.FixtureRequest
) -> None:
    """A model that is opened for one conversation knows none."""
    is_full = request.config.getoption("--full")
    paths = [path for path in sorted(llama_templates_dir.glob("*.jinja")) if is_full or path.stem in TELLING]
    assert len(paths) >= len(TELLING)
    n_prompts = 0
    for path in paths:
        template = path.read_text()
        rng = random.Random(path.stem)
        with TextModel(tiny_model, chat_template=template) as model:
            for calls in (False, True) * (3 if is_full else 1):
                with Forgetful(tiny_model, chat_template=template) as reference:
                    n_prompts += compare(model, reference, rng, calls=calls)
    assert n_prompts > 10 * len(paths)
