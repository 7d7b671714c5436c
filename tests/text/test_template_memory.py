"""What renderings leave to later ones (native/llama/text/template_memory.h) changes no prompt: whatever a template
looks at or changes, a conversation that goes on, is edited or comes back gets what it would get for the first time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.text import RenderedChat, TemplateError, TextModel
from luce.supervisor.text.chat import request_json

from .text_models import Forgetful, tool

Message = dict[str, Any]

TOOLS = [tool("read_file", path="string", line="integer"), tool("write_file", path="string")]
WORDS = ["file", "def", "the", "=", "(", "\n", "'name'", "/a/b.py", "42", "<think>", "</think>", "é漢", "{}", '"', "\\"]

TELLING = (
    "Qwen-Qwen3-0.6B", "Qwen3.5-4B", "deepseek-ai-DeepSeek-V4", "google-gemma-4-31B-it", "openai-gpt-oss-120b",
    "mistralai-Ministral-3-14B-Reasoning-2512", "Mistral-Small-3.2-24B-Instruct-2506", "Kimi-K2-Thinking",
)  # fmt: skip
"""Of each way to render: llama.cpp's handlers that look at messages and those that do not, loops that look ahead, that
count, that change lists."""


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


class Remembering:
    """A forgetful model that is not: the same template, with the same memory."""

    def __init__(self, model: TextModel) -> None:
        self._model = model

    def render(self, messages: Sequence[Message], **options: Any) -> RenderedChat:
        return TextModel.render_json(self._model, *request_json(messages, **options))


def told(model: TextModel | Remembering, messages: Sequence[Message], **options: Any) -> tuple[Any, ...] | str:
    try:
        chat = model.render(messages, **options)
    except TemplateError as error:
        return str(error)
    try:
        return chat.prompt, bytes(chat.tokens), chat.marks, chat.generation_prompt, chat.grammar, chat.text_spans
    finally:
        chat.close()


def memory_of(model: TextModel) -> dict[str, int]:
    with model._model as handle:
        return dict(model._library.json_of("template_info", handle)["memory"])


def compare(model: TextModel | Remembering, reference: TextModel, rng: random.Random, *, calls: bool) -> int:
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
            assert memory_of(model)["in_use"], path.stem
    assert n_prompts > 10 * len(paths)


REUSING = (
    "Qwen-Qwen3-0.6B", "Qwen3.5-4B", "Qwen3-Coder", "GLM-4.6", "deepseek-ai-DeepSeek-V3.1",
    "mistralai-Mistral-Nemo-Instruct-2407", "MiniMax-M2", "poolside-Laguna-XS.2",
)  # fmt: skip


@pytest.mark.parametrize("name", [None, *REUSING])
def test_a_turn_of_a_conversation_renders_what_is_new(
    tiny_model: Path, llama_templates_dir: Path, name: str | None
) -> None:
    template = None if name is None else (llama_templates_dir / f"{name}.jinja").read_text()
    call = {"id": "call00001", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a"}'}}
    messages: list[Message] = [{"role": "user", "content": "Look around"}]
    with TextModel(tiny_model, chat_template=template) as model:
        for number in range(12):
            called = {"role": "assistant", "content": f"Step {number}", "tool_calls": [call]}
            messages += [called, {"role": "tool", "tool_call_id": "call00001", "content": f"Found {number}"}]
            before = memory_of(model)
            model.render(messages, tools=TOOLS).close()
            after = memory_of(model)
        assert after["turns_reused"] - before["turns_reused"] >= len(messages) - 6
        assert after["turns_kept"] - before["turns_kept"] <= 16  # some loops that come before look at all
        assert after["turns_in_runs"] - before["turns_in_runs"] >= len(messages) - 6


FRAME = "{% for m in messages %}<|im_start|>{{ m.role }}\nBODY<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
SHOW = "{{ m.content }}"
BODIES = (
    "{{ messages[loop.index0 + 1].role if not loop.last }}",
    "{{ messages[loop.index0 - 1].role }}",
    "{{ messages[-1].content }}",
    "{{ messages | length }}",
    "{{ messages[1:] | length }}",
    "{{ messages | map(attribute='role') | join(',') }}",
    "{{ loop.index }}/{{ loop.length }}/{{ loop.revindex0 }}",
    "{{ loop.previtem.role }}{{ loop.nextitem.role }}",
    "{% set s.n = s.n + 1 %}{{ s.n }}",
    "{% if m.role == 'user' %}{% set s.seen = m.content %}{% endif %}{{ s.seen }}",
    "{% set t.n = t.n + 1 %}{{ s.n }}",
    "{% set mine = namespace(n=loop.index0) %}{% set mine.n = mine.n + 1 %}{{ mine.n }}",
    "{% if loop.first %}{% set mine = namespace(n=0) %}{% endif %}{% set mine.n = mine.n + 1 %}{{ mine.n }}",
    "{{ last }}{% set last = m.role %}",
    "{{ l.append(m.role) | length }}{{ l }}",
    "{% set own = [m.role] %}{{ own.append('x') }}{{ own }}",
    "{% set alias = l %}{{ alias.append(m.role) | length }}",
    "{% if loop.first %}{% set kept = [] %}{% endif %}{{ kept.append(m.role) | length }}",
    "{% if loop.index0 == 2 %}{% set s.list = [1] %}{% endif %}{{ s.list | length }}",
    "{% if loop.index0 == 1 %}{% set box = l %}{% endif %}{{ l.append(1) | length }}{{ box | length }}",
    "{{ shown(m) }}",
    "{{ counted() }}",
    "{% set f = shown %}{{ f(m) }}",
    "{{ of_loop() }}",
    "{% for c in m.content %}{{ loop.index }}{% endfor %}{{ loop.index }}",
    "{% for o in messages %}{{ o.role[0] }}{% endfor %}",
    "{% for o in messages if o.role == 'user' %}{{ o.content }}{% endfor %}",
    "{% if m.role == 'assistant' %}{% continue %}{% endif %}x",
    "{% if loop.index > 4 %}{% break %}{% endif %}x",
    "{{ others[loop.index0].content }}",
    "{% set m.content = m.role %}{{ m.content }}",
    "{% if loop.index0 == 3 %}{% set m.extra = 1 %}{% endif %}{{ m.extra }}",
    "{{ messages.pop() if loop.index0 == 4 }}",
    "{{ tools | length }}{{ tools[0].function.name }}",
    "{{ {'a': m, 'b': s.n}['a'].role }}{{ [last, s.n] }}",
    "{% if loop.index0 > 2 %}{% for o in others[:3] %}{% set n = l.append(1) %}{{ loop.index }}{% endfor %}{% endif %}",
    "{% if add_generation_prompt %}{{ m.role }}{% endif %}",
    "{% set s.asked = add_generation_prompt %}{{ s.asked }}",
    "{% set m = others[0] %}{{ m.role }}",
    "{% set a, b = m.role, s.n %}{{ a }}{{ b }}",
    "{% set text %}{{ m.role }}{{ last }}{% endset %}{{ text | upper }}",
)
BEFORE = (
    "{% set s = namespace(n=0, seen='', list=[]) %}{% set t = s %}{% set l = [] %}{% set last = '' %}"
    "{% set others = messages[1:] if messages[0].role == 'system' else messages %}"
    "{% macro shown(x) %}[{{ x.role }}{{ last }}{{ s.n }}]{% endmacro %}"
    "{% macro counted() %}{% set s.n = s.n + 1 %}{{ s.n }}{% endmacro %}"
    "{% macro of_loop() %}{{ loop.index }}{{ messages[loop.index0].role }}{% endmacro %}"
)


def template_of(bodies: Sequence[str]) -> str:
    return BEFORE + FRAME.replace("BODY", "".join(bodies) + SHOW) + "{{ s.n }}{{ l | length }}{{ last }}"


@pytest.mark.parametrize("seed", range(3))
def test_whatever_a_template_looks_at_or_changes(tiny_model: Path, seed: int, request: pytest.FixtureRequest) -> None:
    rng = random.Random(seed)
    is_full = request.config.getoption("--full")
    chosen = [[body] for body in BODIES if is_full or BODIES.index(body) % 3 == seed]
    chosen += [rng.sample(BODIES, rng.randint(2, 4)) for _ in range(300 if is_full else 4)]
    n_prompts = 0
    for bodies in chosen:
        with Forgetful(tiny_model, chat_template=template_of(bodies)) as model:
            n_prompts += compare(Remembering(model), model, rng, calls=rng.random() < 0.5)
    assert n_prompts > 5 * len(chosen)


def test_a_template_that_changes_what_it_is_given_is_rendered_as_a_whole(tiny_model: Path) -> None:
    template = template_of(["{% set m.content = m.content ~ '!' %}"])
    messages = [{"role": "user", "content": "Hello"}]
    with TextModel(tiny_model, chat_template=template) as model:
        for _ in range(3):
            assert model.render(messages).prompt.startswith("<|im_start|>user\nHello!<|im_end|>\n")
        assert not memory_of(model)["in_use"]
