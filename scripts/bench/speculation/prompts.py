"""The prompt sets of tests/data/speculation, a JSON object a line, as a model's own template renders them,
alone or behind a conversation of a given length. It must not know an engine or a clock.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from luce.supervisor.text import TextModel

FOLDER = Path(__file__).resolve().parents[3] / "tests" / "data" / "speculation"
SET_NAMES = ("copy", "edit", "code", "chat", "tools")

Message = Mapping[str, Any]


class PromptSetError(ValueError):
    """A file of prompts is not what it should be; the text says where."""


@dataclass(frozen=True)
class Prompt:
    """A conversation that waits for an answer, or whose last message is an answer that has begun."""

    name: str
    set_name: str
    messages: tuple[Message, ...]
    tools: tuple[Message, ...] = ()

    @property
    def goes_on(self) -> bool:
        return bool(self.messages[-1]["role"] == "assistant")


@dataclass(frozen=True)
class RenderedPrompt:
    """Token ids, ready for any engine."""

    name: str
    set_name: str
    ids: tuple[int, ...]
    marks: tuple[int, ...]
    """Where messages begin."""
    n_shared: int = 0
    """So many of the ids are the conversation before it, which others of its set have too."""


def load_set(name: str, folder: Path = FOLDER) -> list[Prompt]:
    """Raises PromptSetError."""
    path = folder / f"{name}.jsonl"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise PromptSetError(f"there is no set {name}: {error}") from error
    prompts = [_parse(line, name, f"{path.name}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise PromptSetError(f"{path.name} has no prompts")
    return prompts


def _parse(line: str, set_name: str, where: str) -> Prompt:
    try:
        record = json.loads(line)
        messages, tools = tuple(record["messages"]), tuple(record.get("tools", ()))
        if not messages or not all(isinstance(message["role"], str) for message in messages):
            raise PromptSetError(f"{where}: no messages with roles")
        return Prompt(str(record["id"]), set_name, messages, tools)
    except (ValueError, KeyError, TypeError) as error:
        raise PromptSetError(f"{where}: {error!r}; a line is an object with id, messages and perhaps tools") from error


def render(model: TextModel, prompt: Prompt, before: Sequence[Message] = ()) -> RenderedPrompt:
    """The prompt as the model's template writes it, behind the messages `before`."""
    ids, marks = _render(model, (*before, *prompt.messages), prompt.tools, goes_on=prompt.goes_on)
    n_shared = 0
    if before:
        other, _ = _render(model, (*before, {"role": "user", "content": "?"}), prompt.tools)
        n_shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids, other, strict=False)))
    return RenderedPrompt(prompt.name, prompt.set_name, ids, marks, n_shared)


def _render(
    model: TextModel, messages: Sequence[Message], tools: Sequence[Message], *, goes_on: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    chat = model.render(messages, tools=tools or None, continue_final_message=goes_on)
    chat.close()
    return tuple(chat.tokens), tuple(mark.token for mark in chat.marks if mark.token > 0)


def filler(model: TextModel, n_tokens: int, seed: int) -> list[Message]:
    """A conversation about code and other things of at most n_tokens, and less than a message short of it."""
    messages: list[Message] = []
    n_left = n_tokens
    for pair in _small_talk(seed):
        # Rendered alone a pair is as long as behind others, but for the generation prompt.
        n_pair = len(_render(model, pair, ())[0])
        if n_pair > n_left:
            return messages
        n_left -= n_pair
        messages += pair
    return messages


def _small_talk(seed: int) -> Iterator[list[Message]]:
    """Pairs of a message and its answer, without end: what the sets say, in any order."""
    rng = random.Random(f"filler {seed}")
    prompts = [prompt for name in SET_NAMES for prompt in load_set(name)]
    texts = [message["content"] for prompt in prompts for message in prompt.messages if message["role"] == "user"]
    while True:
        question, answer = rng.sample(texts, 2)
        yield [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def load_rendered(
    model: Path | str | os.PathLike[str],
    set_names: Sequence[str] = SET_NAMES,
    *,
    n_context: int = 0,
    n_prompts: int | None = None,
    seed: int = 0,
    folder: Path = FOLDER,
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, list[RenderedPrompt]]:
    """The first n_prompts (None: all) of each set, rendered by the model file's own template, each behind about
    n_context tokens of the same conversation."""
    rendered: dict[str, list[RenderedPrompt]] = {}
    with TextModel(model) as text_model:
        before = filler(text_model, n_context, seed) if n_context > 0 else []
        for name in set_names:
            rendered[name] = [render(text_model, prompt, before) for prompt in load_set(name, folder)[:n_prompts]]
            lengths = [len(prompt.ids) for prompt in rendered[name]]
            report(f"{name}: {len(lengths)} prompts of {min(lengths)} to {max(lengths)} tokens")
    return rendered
