"""Prompts for templates of many kinds: roles that they do not take, tools that must be called, budgets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.http.prompts.rendering import Rendered, Renderer, call_at_once
from luce.supervisor.text import TextModel
from tests.http.answering.answering_fixtures import LIST, READ

RendererOf = Callable[[str], Renderer]


@pytest.fixture(scope="module")
def renderer_of(tiny_model: Path, llama_templates_dir: Path) -> Iterator[RendererOf]:
    """For the tiny model with one of llama.cpp's templates, or its own ("")."""
    opened: list[TextModel] = []

    def make(name: str) -> Renderer:
        template = (llama_templates_dir / f"{name}.jinja").read_text() if name else None
        opened.append(TextModel(tiny_model, chat_template=template))
        return Renderer(opened[-1])

    yield make
    for model in opened:
        model.close()


def message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def prompt_of(rendered: Rendered) -> str:
    assert rendered.chat is not None
    return rendered.chat.prompt


# As Codex begins (two developer messages), and as Claude Code does (a system message after the user's).
CODEX = [message("developer", "Rules one."), message("developer", "Rules two."), message("user", "Hello")]
CLAUDE_CODE = [message("system", "Rules."), message("user", "Hello"), message("system", "It is Monday.")]
TEMPLATES = [
    "",
    "Qwen-Qwen3-0.6B",
    "Qwen3.5-4B",
    "Qwen3-Coder",
    "openai-gpt-oss-120b",
    "google-gemma-2-2b-it",
    "google-gemma-4-31B-it",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "meta-llama-Llama-3.1-8B-Instruct",
    "deepseek-ai-DeepSeek-V3.1",
    "GLM-4.6",
    "Kimi-K2-Instruct",
    "ibm-granite-granite-4.0",
    "microsoft-Phi-3.5-mini-instruct",
]


@pytest.mark.parametrize("name", TEMPLATES)
def test_system_texts_anywhere_reach_the_model_in_their_order(renderer_of: RendererOf, name: str) -> None:
    renderer = renderer_of(name)
    for messages in (CODEX, CLAUDE_CODE):
        texts = [str(each["content"]) for each in messages]
        prompt = prompt_of(renderer.render(ChatPrompt(messages=messages)))
        assert all(prompt.count(text) == 1 for text in texts), prompt
        longer = [*messages, message("assistant", "Good day."), message("user", "And now?")]
        again = prompt_of(renderer.render(ChatPrompt(messages=longer)))
        common = again.find("Good day.")
        # What was there before the answer is as it was.
        assert again[:common].startswith(prompt[: prompt.find(texts[-1]) + len(texts[-1])])


def test_a_developer_is_the_system_where_the_template_has_none(renderer_of: RendererOf) -> None:
    assert "developer" not in prompt_of(renderer_of("Qwen-Qwen3-0.6B").render(ChatPrompt(messages=CODEX)))
    assert "developer" in prompt_of(renderer_of("openai-gpt-oss-120b").render(ChatPrompt(messages=CODEX)))


def test_a_thinking_budget(renderer_of: RendererOf) -> None:
    hello = [message("user", "Hello")]
    thinks, plain = renderer_of("Qwen-Qwen3-0.6B"), renderer_of("")
    constraint = thinks.render(ChatPrompt(messages=hello, thinking_budget=0)).constraint
    assert constraint.think_budget == 0
    assert constraint.think_start
    assert constraint.think_end
    assert thinks.render(ChatPrompt(messages=hello)).constraint.think_budget is None
    assert thinks.render(ChatPrompt(messages=hello, thinking=False, thinking_budget=9)).constraint.think_budget is None
    assert plain.render(ChatPrompt(messages=hello, thinking_budget=9)).constraint.think_budget is None


def test_a_thinking_budget_of_reasoning_that_the_template_begins(renderer_of: RendererOf) -> None:
    """What follows `<think>` in the prompt is not the model's, and is not to be taken for a forced end."""
    hello = [message("user", "Hello")]
    begins = renderer_of("Qwen-QwQ-32B")
    constraint = begins.render(ChatPrompt(messages=hello, thinking_budget=0)).constraint
    assert (constraint.think_budget, constraint.generation_prompt) == (0, "<think>")
    lazy = begins.render(ChatPrompt(messages=hello, tools=[READ], thinking_budget=5)).constraint
    assert lazy.grammar_lazy
    assert (lazy.think_budget, lazy.generation_prompt) == (5, "<think>")
    bound = begins.render(
        ChatPrompt(messages=hello, tools=[READ], tool_choice="required", thinking_budget=0)
    ).constraint
    assert (bound.think_budget, bound.generation_prompt) == (1, "<|im_start|>assistant\n<think>\n")
    ended = renderer_of("Qwen-Qwen3-0.6B").render(
        ChatPrompt(messages=hello, thinking_budget=0, template_arguments={"enable_thinking": False})
    )
    assert ended.constraint.think_budget == 0


def test_a_prompt_that_opens_no_answer(renderer_of: RendererOf) -> None:
    hello = [message("user", "Hello")]
    opened = prompt_of(renderer_of("").render(ChatPrompt(messages=hello)))
    assert prompt_of(renderer_of("").render(ChatPrompt(messages=hello, opens_answer=False))) == opened.removesuffix(
        "<|im_start|>assistant\n"
    )


def test_switches_reach_templates_that_know_them(renderer_of: RendererOf) -> None:
    hello = [message("user", "Hello")]
    qwen, plain, gpt = renderer_of("Qwen-Qwen3-0.6B"), renderer_of(""), renderer_of("openai-gpt-oss-120b")
    assert prompt_of(qwen.render(ChatPrompt(messages=hello, thinking=False))).endswith("</think>\n\n")
    assert not prompt_of(qwen.render(ChatPrompt(messages=hello, thinking=True))).endswith("</think>\n\n")
    assert "Reasoning: high" in prompt_of(gpt.render(ChatPrompt(messages=hello, effort="high")))
    known = plain.render(ChatPrompt(messages=hello))
    for prompt in (
        ChatPrompt(messages=hello, thinking=True, effort="high"),
        ChatPrompt(messages=hello, template_arguments={"made_up": {"a": 1}}),
    ):
        assert plain.render(prompt).ids == known.ids


@pytest.mark.parametrize("name", ["", "Qwen-Qwen3-0.6B", "Qwen3.5-4B", "Qwen3-Coder", "deepseek-ai-DeepSeek-V3.1"])
def test_a_required_call_comes_without_words(renderer_of: RendererOf, name: str) -> None:
    renderer, hello = renderer_of(name), [message("user", "Hello")]
    free = renderer.render(ChatPrompt(messages=hello, tools=[READ, LIST]))
    bound = renderer.render(ChatPrompt(messages=hello, tools=[READ, LIST], tool_choice="required"))
    assert free.constraint.grammar_lazy
    assert not bound.constraint.grammar_lazy
    assert bound.chat is not None
    root = next(line for line in (bound.constraint.grammar or "").splitlines() if line.startswith("root ::="))
    words = root.count("until-")
    assert words == int(bound.chat.thinking.supported), root
    named = renderer.render(ChatPrompt(messages=hello, tools=[READ, LIST], tool_choice="function:list_folder"))
    assert "read_file" not in (named.constraint.grammar or "")


def test_what_a_grammar_of_the_answer_alone_is_told(renderer_of: RendererOf) -> None:
    """What stands before the answer is part of the template's grammars only."""
    hello, schema = [message("user", "Hello")], {"type": "object", "properties": {"a": {"type": "integer"}}}
    plain, kimi = renderer_of(""), renderer_of("Kimi-K2-Instruct")
    own = ChatPrompt(messages=hello, grammar='root ::= "yes" | "no"')
    assert plain.render(own).constraint.generation_prompt is None
    for made in (ChatPrompt(messages=hello, json_schema=schema), ChatPrompt(messages=hello, json_schema={})):
        assert plain.render(made).constraint.generation_prompt == "<|im_start|>assistant\n"
        constraint = kimi.render(made).constraint
        assert constraint.grammar
        assert constraint.generation_prompt is None


@pytest.mark.parametrize("name", ["", "Qwen3.5-4B"])
def test_a_grammar_beside_tools_is_that_of_their_calls_too(renderer_of: RendererOf, name: str) -> None:
    renderer, hello = renderer_of(name), [message("user", "Hello")]
    free = renderer.render(ChatPrompt(messages=hello, tools=[READ]))
    for choice in ("auto", "required", "function:read_file"):
        own = ChatPrompt(messages=hello, tools=[READ], tool_choice=choice, grammar='root ::= "a"')
        bound = renderer.render(own)
        assert bound.ids == free.ids
        constraint = bound.constraint
        assert (constraint.grammar, constraint.grammar_lazy, constraint.triggers) == ('root ::= "a"', False, ())
        assert constraint.generation_prompt is None


def test_words_before_a_call_are_all_that_a_grammar_loses() -> None:
    grammar = 'a ::= "x"\nroot ::= "<s>" space ("<t>" until-4 "</t>")? until-9? tool-calls\nuntil-9 ::= [a-z]'
    assert call_at_once(grammar, "<t>") == grammar.replace("until-9? tool", "tool")
    reasoning = (
        'root ::= ("<think>" until-69 space tool-call | ("<think>" until-61 "</think>")? until-76 space tool-call)'
    )
    kept = 'root ::= ("<think>" until-69 space tool-call | ("<think>" until-61 "</think>")? space tool-call)'
    assert call_at_once(reasoning, "<think>") == kept
    for other in ("", 'root ::= "yes" | "no"', "root ::= until-3 tools", "root ::= (start any)* start tool-call"):
        assert call_at_once(other, "") == other


def test_a_template_may_change_its_messages(tiny_model: Path) -> None:
    template = "{% for m in messages %}{% set m.content = m.content ~ '!' %}{{ m.content }}{% endfor %}"
    prompt = ChatPrompt(messages=[message("user", "Hello")])
    with TextModel(tiny_model, chat_template=template) as model:
        renderer = Renderer(model)
        assert {prompt_of(renderer.render(prompt)) for _ in range(3)} == {"Hello!"}
