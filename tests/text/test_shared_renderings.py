"""A request's three renderings share what they have in common (cmake/patches/chat-one-rendering.patch): each comes out
as if it were alone, whatever the template does behind what is shared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.text import TemplateError, TextModel

from .conftest import OpenWith
from .text_models import tool

WRITE_IT_THEMSELVES = {"google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved", "muse-glimmer"}
"""llama.cpp has a handler for each that puts other text there than the template's."""

CALL = {"id": "call_0001", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a"}'}}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hello"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi.", "reasoning_content": "A greeting."},
        {"role": "user", "content": "And <|im_end|>?"},
    ],
    [
        {"role": "user", "content": "Read"},
        {"role": "assistant", "content": "I do.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_0001", "content": "text"},
    ],
]


def added(without: str, prompt: str) -> str:
    pairs = enumerate(zip(without, prompt, strict=False))
    return prompt[next((at for at, (a, b) in pairs if a != b), min(len(without), len(prompt))) :]


def test_every_template_adds_what_two_requests_differ_in(open_with: OpenWith, llama_templates_dir: Path) -> None:
    n_compared = 0
    for name in sorted({path.stem for path in llama_templates_dir.glob("*.jinja")} - WRITE_IT_THEMSELVES):
        model = open_with(name)
        for messages in CONVERSATIONS:
            for options in ({}, {"enable_thinking": False}, {"tools": [tool("read_file", path="string")]}):
                try:
                    chat = model.render(messages, **options)
                    without = model.render(messages, **options, add_generation_prompt=False)
                except TemplateError:
                    continue  # no roles or tools of that kind
                assert chat.generation_prompt == without.generation_prompt, (name, options)
                assert chat.generation_prompt == added(without.prompt, chat.prompt), (name, options)
                n_compared += 1
    assert n_compared > 500


TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
OPENING = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
SHOWN = "<|im_start|>user\nHello<|im_end|>\n"
OPENED = "<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("template", "prompt", "without"),
    [
        (TURNS + OPENING, SHOWN + OPENED, SHOWN),
        (TURNS + OPENING + "{{ messages|length }}", SHOWN + OPENED + "1", SHOWN + "1"),
        ("{% set s = namespace(n=0) %}" + TURNS + OPENING + "{% set s.n = s.n + 1 %}{{ s.n }}", SHOWN + OPENED + "1",
         SHOWN + "1"),
        ("{% set l = [] %}" + TURNS + OPENING + "{{ l.append(1) }}{{ l|length }}", SHOWN + OPENED + "11", SHOWN + "11"),
        ("{% set l = [1, 2, 3] %}" + TURNS + OPENING + "{{ l|pop }}{{ l|length }}", SHOWN + OPENED + "32",
         SHOWN + "32"),
        ("{% set s = namespace(n=0) %}{% macro up() %}{% set s.n = s.n + 1 %}{% endmacro %}" + TURNS + OPENING
         + "{{ up() }}{{ s.n }}", SHOWN + OPENED + "1", SHOWN + "1"),
        ("{% macro open() %}" + OPENING + "{% endmacro %}" + TURNS + "{{ open() }}", SHOWN + OPENED, SHOWN),
        (TURNS + "{{ '[' ~ messages|length ~ (OPEN if add_generation_prompt else '') ~ ']' }}".replace(
            "OPEN", "'<|im_start|>assistant\n'"), SHOWN + "[1" + OPENED + "]", SHOWN + "[1]"),
        ("{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}" + TURNS
         + OPENING, SHOWN + OPENED, SHOWN),
        (TURNS + "{# add_generation_prompt #}", SHOWN, SHOWN),
    ],
)  # fmt: skip
def test_what_a_template_changes_is_not_shared(tiny_model: Path, template: str, prompt: str, without: str) -> None:
    with TextModel(tiny_model, chat_template=template) as model:
        for opens, expected in ((True, prompt), (False, without)):
            chat = model.render(CONVERSATIONS[0], add_generation_prompt=opens)
            assert chat.prompt == expected
            assert chat.generation_prompt == added(without, prompt)
