"""What is found of known templates, and prompts that follow from it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from luce.supervisor.http.errors import ApiError
from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.http.prompts.answer_spellings import AnswerSpellings
from luce.supervisor.http.prompts.rendering import Rendered, Renderer
from luce.supervisor.http.prompts.templates.probes import find_traits
from luce.supervisor.text import TextModel
from tests.http.prompts.templates.conversations import TOOL, Message, conversation

NEMO, SMALL = "mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506"
LLAMA = "meta-llama-Llama-3.1-8B-Instruct"

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As SmolLM2's."""

Opened = Callable[[str], TextModel]


@pytest.fixture(scope="module")
def opened(tiny_model: Path, llama_templates_dir: Path) -> Iterator[Opened]:
    """With one of llama.cpp's templates, or one that this is the text of; its own ("")."""
    models: dict[str, TextModel] = {}

    def make(name: str) -> TextModel:
        if name not in models:
            template = name if "{" in name or not name else (llama_templates_dir / f"{name}.jinja").read_text()
            models[name] = TextModel(tiny_model, chat_template=template or None)
        return models[name]

    yield make
    for model in models.values():
        model.close()


def prompt_of(rendered: Rendered) -> str:
    assert rendered.chat is not None
    return rendered.chat.prompt


def renamed(messages: list[Message], name: Callable[[str], str]) -> list[Message]:
    """With other ids of calls."""
    changed = json.loads(json.dumps(messages))
    for message in changed:
        for call in message.get("tool_calls", ()):
            call["id"] = name(call["id"])
        if "tool_call_id" in message:
            message["tool_call_id"] = name(message["tool_call_id"])
    return list(changed)


@pytest.mark.parametrize("name", ["", "Qwen3-Coder", "GLM-4.6", "ibm-granite-granite-4.0", "poolside-Laguna-S-2.1"])
def test_many_templates_take_everything(opened: Opened, name: str) -> None:
    assert list(find_traits(opened(name), with_tools=True).remedies()) == []
    assert list(find_traits(opened(name), with_tools=False).remedies()) == []


@pytest.mark.parametrize(
    ("name", "length"),
    [(NEMO, 9), (SMALL, 9), (LLAMA, None), ("Kimi-K2-Instruct", None)],
)
def test_the_form_of_ids(opened: Opened, name: str, length: int | None) -> None:
    assert find_traits(opened(name), with_tools=True).call_id_length == length


def test_a_system_text_has_to_be_shown_in_its_place(opened: Opened) -> None:
    deepseek = find_traits(opened("deepseek-ai-DeepSeek-V3.1"), with_tools=True)
    assert deepseek.leading_roles == {"system"}
    assert deepseek.takes_several_leading
    assert deepseek.roles_behind_system == deepseek.roles_without_system == frozenset()
    gpt_oss = find_traits(opened("openai-gpt-oss-120b"), with_tools=True)
    assert gpt_oss.leading_roles == {"system", "developer"}
    apriel = find_traits(opened("unsloth-Apriel-1.5"), with_tools=False)
    assert apriel.roles_behind_system == {"system"}
    assert apriel.roles_without_system == frozenset(), "its own system text would go"


@pytest.mark.parametrize(("name", "moves"), [(NEMO, True), (SMALL, True), (LLAMA, False), ("", False), (PLAIN, False)])
def test_tools_that_move_to_each_question(opened: Opened, name: str, moves: bool) -> None:
    assert find_traits(opened(name), with_tools=True).moves_tools == moves
    assert not find_traits(opened(name), with_tools=False).moves_tools


def test_tools_and_calls(opened: Opened) -> None:
    def traits(name: str) -> tuple[bool, bool, bool]:
        found = find_traits(opened(name), with_tools=True)
        return found.shows_tools, found.parses_calls, found.shows_calls

    assert traits("") == (True, True, True)
    assert traits("deepseek-ai-DeepSeek-V3.1") == (False, True, True)
    assert traits(PLAIN) == (False, False, False)
    assert traits("google-gemma-2-2b-it") == (False, False, False)
    assert traits("ibm-granite-granite-3.3-2B-Instruct") == (True, False, False)


@pytest.mark.parametrize("name", [NEMO, SMALL])
@pytest.mark.parametrize("begin", ["", "toolu_01A09q90qw90lq9", "abc"])
def test_ids_give_the_same_prompt_each_turn(opened: Opened, name: str, begin: str) -> None:
    """Also where an earlier turn had other ids for the same calls."""
    renderer = Renderer(opened(name), None, AnswerSpellings(1 << 20))
    first = ChatPrompt(messages=renamed(conversation("u2rr"), lambda id_: begin + id_[-2:]), tools=[TOOL])
    prompt = prompt_of(renderer.render(first))
    longer = conversation("u2rrac2rr")
    for name_of in (lambda id_: begin + id_[-2:], lambda id_: f"another {id_}", lambda id_: f"0000000{id_[-2:]}"):
        assert prompt_of(renderer.render(replace(first, messages=renamed(longer, name_of)))).startswith(prompt)


@pytest.mark.parametrize(("name", "expected"), [(LLAMA, 1), ("openai-gpt-oss-120b", 1), ("Qwen3-Coder", None)])
def test_calls_at_once(opened: Opened, name: str, expected: int | None) -> None:
    renderer = Renderer(opened(name))
    prompt = ChatPrompt(messages=conversation("u"), tools=[TOOL])
    assert renderer.render(prompt).max_calls == expected
    assert renderer.render(replace(prompt, parallel_tool_calls=True)).max_calls is None
    assert renderer.render(replace(prompt, parallel_tool_calls=False)).max_calls == 1
    assert renderer.render(replace(prompt, parallel_tool_calls=True, max_tool_calls=3)).max_calls == 3
    assert renderer.render(ChatPrompt(messages=conversation("u"))).max_calls is None


def test_results_of_a_template_without_ids_go_to_their_calls(opened: Opened) -> None:
    renderer = Renderer(opened(""))
    in_order = ChatPrompt(messages=conversation("u3rrrau"), tools=[TOOL])
    assert prompt_of(renderer.render(replace(in_order, messages=conversation("u3RRRau")))) == prompt_of(
        renderer.render(in_order)
    )


PICKY = (
    "{% for m in messages %}{% if 'dog' in m.content %}{{ raise_exception('Only\n  cats, please') }}{% endif %}"
    "{% if m.content == 'mouse' and m.role == 'assistant' %}{{ raise_exception('No mouse speaks') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)


def test_a_refusal_is_a_sentence_that_names_the_field(opened: Opened) -> None:
    with pytest.raises(ApiError) as refused:
        Renderer(opened(PICKY)).render(ChatPrompt(messages=[{"role": "user", "content": "A dog."}]))
    assert (refused.value.code, refused.value.param) == ("bad_messages", "messages")
    assert refused.value.text == "The chat template does not take these messages: Only cats, please."


def test_tools_that_are_refused_are_named(opened: Opened) -> None:
    no_tools = (
        "{% if tools %}{{ raise_exception('no tools') }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    with pytest.raises(ApiError) as refused:
        Renderer(opened(no_tools)).render(ChatPrompt(messages=conversation("u"), tools=[TOOL]))
    assert (refused.value.param, refused.value.text) == (
        "tools",
        "The chat template does not take these tools: no tools.",
    )


def test_what_no_probe_has_foreseen_is_told_in_plain_turns(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """Said once."""
    moody = (
        "{% for m in messages %}"
        "{% if m.role == 'tool' and 'mouse' in m.content %}{{ raise_exception('Eek') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function }}{% endfor %}<|im_end|>\n"
        "{% endfor %}"
    )
    messages = conversation("ucrau")
    messages[2]["content"] = "A mouse."
    renderer = Renderer(opened(moody))
    with caplog.at_level(logging.WARNING, "luce.http.answering"):
        prompts = [prompt_of(renderer.render(ChatPrompt(messages=messages))) for _ in range(2)]
    assert all("\n" not in each.getMessage() for each in caplog.records)
    assert "A mouse." in prompts[0]
    assert prompts[0] == prompts[1]
    assert len([each for each in caplog.records if "plain turns" in each.getMessage()]) == 1
