"""Reasoning that templates strip once the user writes again: the next turn finds all that stands before it, however
long the chain of calls was; and where the template can show it all and its makers advise that, nothing is stripped."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from luce.supervisor.http.answer_defaults import AnswerDefaults, ModelDefaults
from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.http.prompts.rendering import Renderer
from luce.supervisor.text import TextModel
from tests.http.answering.answering_fixtures import READ
from tests.http.serving import CALL_S, Server

Message = dict[str, Any]

N_CALLS = 12
SECRET = "I think of a number."

HISTORY: list[Message] = [
    {"role": "user", "content": "First."},
    {"role": "assistant", "content": "Done.", "reasoning_content": SECRET},
    {"role": "user", "content": "Second."},
]


def qwen36(llama_templates_dir: Path) -> str:
    """Qwen 3.5's template, and the argument that 3.6 has brought."""
    shows = "loop.index0 > ns.last_query_index"
    own = (llama_templates_dir / "Qwen3.5-4B.jinja").read_text()
    assert own.count(shows) == 1
    return own.replace(shows, f"(preserve_thinking is defined and preserve_thinking is true) or ({shows})")


@pytest.fixture(scope="module")
def renderers(tiny_model: Path, llama_templates_dir: Path) -> Iterator[dict[str, Renderer]]:
    names = ("Qwen3.5-4B", "GLM-4.7-Flash", "LFM2.5-8B-A1B", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    templates = {name: (llama_templates_dir / f"{name}.jinja").read_text() for name in names}
    templates["Qwen3.6"] = qwen36(llama_templates_dir)
    models = {name: TextModel(tiny_model, chat_template=text) for name, text in templates.items()}
    yield {name: Renderer(model) for name, model in models.items()}
    for model in models.values():
        model.close()


def shows_all(renderer: Renderer, prompt: ChatPrompt) -> bool:
    rendered = renderer.render(prompt)
    assert rendered.chat is not None
    try:
        return SECRET in rendered.chat.prompt
    finally:
        rendered.close()


@pytest.mark.parametrize(
    ("name", "is_advised", "can_keep"),
    [
        ("Qwen3.5-4B", False, False),
        ("Qwen3.6", True, True),
        ("GLM-4.7-Flash", True, True),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", False, True),
    ],
)
def test_reasoning_stays_where_it_is_wanted_or_advised(
    renderers: dict[str, Renderer], name: str, is_advised: bool, can_keep: bool
) -> None:
    renderer = renderers[name]
    agents = ChatPrompt(messages=HISTORY, tools=(READ,))
    assert shows_all(renderer, agents) == is_advised
    assert not shows_all(renderer, replace(agents, tools=()))
    for prompt in (agents, replace(agents, tools=())):
        assert shows_all(renderer, replace(prompt, preserve_thinking="on")) == can_keep
        assert not shows_all(renderer, replace(prompt, preserve_thinking="off"))


def test_the_template_s_own_argument_comes_first(renderers: dict[str, Renderer]) -> None:
    prompt = ChatPrompt(messages=HISTORY, tools=(READ,))
    assert not shows_all(renderers["Qwen3.6"], replace(prompt, template_arguments={"preserve_thinking": False}))
    assert not shows_all(renderers["GLM-4.7-Flash"], replace(prompt, template_arguments={"clear_thinking": True}))


def test_profiles_say_it_too() -> None:
    defaults = ModelDefaults(AnswerDefaults(preserve_thinking="on"), {"lean": AnswerDefaults(preserve_thinking="off")})
    prompt = ChatPrompt(messages=HISTORY)
    assert defaults.complete(prompt, "luce").preserve_thinking == "on"
    assert defaults.complete(prompt, "lean").preserve_thinking == "off"
    assert ModelDefaults(AnswerDefaults(), {}).complete(prompt, "luce").preserve_thinking == "auto"


def test_the_user_s_last_message_ends_where_the_answer_begins(renderers: dict[str, Renderer]) -> None:
    """In the middle of a chain too, whose results of tools the template makes the user's."""
    renderer = renderers["Qwen3.5-4B"]
    first = renderer.render(ChatPrompt(messages=HISTORY[:1], tools=(READ,)))
    assert first.user_end is not None
    assert first.user_end == first.boundaries[-1]
    later = renderer.render(ChatPrompt(messages=[HISTORY[0], *calls(random.Random(1), 2)], tools=(READ,)))
    assert later.user_end == first.user_end
    nobody = [{"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "Yes."}]
    assert renderer.render(ChatPrompt(messages=nobody)).user_end is None


def words(rng: random.Random, n: int) -> str:
    return " ".join(rng.choice(("file", "line", "code", "test", "path", "name", "value", "loop")) for _ in range(n))


def calls(rng: random.Random, n: int) -> Iterator[Message]:
    for number in range(n):
        function = {"name": "read_file", "arguments": f'{{"path": "{words(rng, 2)}"}}'}
        yield {
            "role": "assistant",
            "content": "",
            "reasoning_content": words(rng, 40),
            "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
        }
        yield {"role": "tool", "tool_call_id": f"c{number}", "content": words(rng, 80)}


@pytest.mark.parametrize("preserves", [False, True])
def test_after_a_chain_of_calls_the_next_turn_finds_what_is_not_stripped(
    test_models: Path, llama_templates_dir: Path, tmp_path: Path, preserves: bool
) -> None:
    """In room for a few checkpoints only, which the chain's own could fill."""
    template = tmp_path / "template.jinja"
    template.write_text(qwen36(llama_templates_dir))
    rng = random.Random(3)
    messages: list[Message] = [
        {"role": "system", "content": words(rng, 200)},
        {"role": "user", "content": words(rng, 400)},
    ]
    server = Server(
        test_models / "qwen35.gguf",
        {
            "chat_template": template,
            "preserve_thinking": "on" if preserves else "off",
            "lanes": 1,
            "ubatch": 256,
            "host_cache": 1 << 28 if preserves else 900_000,
        },
    ).start()

    def ask() -> tuple[int, int]:
        body = {"model": "luce", "messages": messages, "tools": [READ], "max_tokens": 2, "temperature": 0}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=CALL_S)
        answer.raise_for_status()
        usage = answer.json()["usage"]
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]

    try:
        n_first, _ = ask()
        chain = list(calls(rng, N_CALLS))
        for number in range(0, len(chain), 2):
            messages += chain[number : number + 2]
            n_chain, _ = ask()
        messages += [
            {"role": "assistant", "content": "Done.", "reasoning_content": words(rng, 20)},
            {"role": "user", "content": words(rng, 30)},
        ]
        _, n_cached = ask()
    finally:
        server.stop()
    # What the template puts before an answer is no part of the user's message.
    assert n_cached >= (n_chain if preserves else n_first) - 8
