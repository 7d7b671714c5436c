"""Every template that llama.cpp ships takes every shape of conversation, shows all of it in its order, and goes on from
what it has shown before."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.http.prompts.rendering import Renderer
from luce.supervisor.text import TextModel
from tests.http.prompts.templates.conversations import TOOL, Message, conversation, said

SHAPES = [
    "s",
    "susau",
    "ssuausau",
    "duau",
    "usau",
    "uausau",
    "au",
    "uuauuau",
    "uaau",
    "ucrau",
    "ucruau",
    "sucrcrusau",
    "uacrau",
    "wrau",
    "u2rrau",
    "u2RRu",
    "u3RrRau",
    "ucuau",
    "crau",
    "cr",
    "ruau",
    "uarau",
]

WORDS_BESIDE_CALLS_ARE_NOT_SHOWN = {
    "Mistral-Small-3.2-24B-Instruct-2506",
    "mistralai-Mistral-Nemo-Instruct-2407",
}
"""To make them a message of their own takes one of the user's, before which these templates put the tools then."""
BESIDE_CALLS = {"wrau": "Message 0 here.", "uacrau": "Message 1 here."}
WORDS_BESIDE_CALLS_COME_LATER = {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "google-gemma-4-31B-it"}
TOOLS_STAND_BEFORE_THE_LAST_QUESTION = WORDS_BESIDE_CALLS_ARE_NOT_SHOWN
"""The next question moves them."""

NO_THOUGHT = re.compile(r"(?:<think>\s*)?</think>\s*")
"""Some templates write it before the latest answers alone."""


def template_names() -> list[str]:
    """Of the tree that was built, or of none where nothing was built."""
    root = Path(__file__).parents[4]
    for cache in sorted((root / "build").glob("*/CMakeCache.txt")):
        match = re.search(r"^llama\.cpp_SOURCE_DIR:STATIC=(.+)$", cache.read_text(), re.MULTILINE)
        if match is not None and (names := sorted(Path(match[1]).glob("models/templates/*.jinja"))):
            return [path.stem for path in names]
    return []


@pytest.mark.parametrize("name", template_names())
def test_every_shape_of_conversation(tiny_model: Path, llama_templates_dir: Path, name: str, full: bool) -> None:
    with TextModel(tiny_model, chat_template=(llama_templates_dir / f"{name}.jinja").read_text()) as model:
        renderer = Renderer(model)
        for tools in ([], [TOOL]):
            moves_tools = bool(tools) and name in TOOLS_STAND_BEFORE_THE_LAST_QUESTION
            for shape in SHAPES if tools or full else SHAPES[::3]:
                messages = conversation(shape)
                whole = render(renderer, messages, tools)
                check_shows_all(name, shape, whole, in_their_order(messages))
                for begin in () if moves_tools else beginnings(messages):
                    prompt = render(renderer, begin, tools)
                    last = said(in_their_order(begin))[-1]
                    shown = prompt[: prompt.rfind(last) + len(last)]
                    assert whole.startswith(shown), (shape, shown[-300:], whole[:2000])


def render(renderer: Renderer, messages: Sequence[Message], tools: Sequence[Message]) -> str:
    rendered = renderer.render(ChatPrompt(messages=messages, tools=tools, opens_answer=False))
    assert rendered.chat is not None
    rendered.close()
    return NO_THOUGHT.sub("", rendered.chat.prompt)


def check_shows_all(name: str, shape: str, prompt: str, messages: list[Message]) -> None:
    texts = said(messages)
    if name in WORDS_BESIDE_CALLS_ARE_NOT_SHOWN:
        texts = [text for text in texts if text != BESIDE_CALLS.get(shape)]
    places = [prompt.find(text) for text in texts]
    assert -1 not in places, (shape, texts, prompt)
    if not ("w" in shape and name in WORDS_BESIDE_CALLS_COME_LATER) and not set("23") & set(shape):
        assert places == sorted(places), (shape, prompt)
    results = [prompt.find(text) for text in texts if text.startswith("Result")]
    assert results == sorted(results), (shape, prompt)


def in_their_order(messages: list[Message]) -> list[Message]:
    """The results of a message's calls as the calls come."""
    ordered: list[Message] = []
    for message in messages:
        if message["role"] == "tool" and ordered and ordered[-1]["role"] == "tool":
            run = next(n for n in reversed(range(len(ordered))) if ordered[n]["role"] != "tool")
            ordered[run + 1 :] = sorted([*ordered[run + 1 :], message], key=lambda each: str(each["tool_call_id"]))
        else:
            ordered.append(message)
    return ordered


def beginnings(messages: list[Message]) -> Iterator[list[Message]]:
    """Those that are answered."""
    for end in range(1, len(messages)):
        if messages[end]["role"] == "assistant" and messages[end - 1]["role"] != "assistant":
            yield messages[:end]


def test_there_are_templates() -> None:
    assert len(template_names()) > 70
