"""Marks within messages: before what another session says differently, behind what it says alike, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.http.prompts.prompt_marks import PromptMarks
from luce.supervisor.http.prompts.rendering import Rendered, Renderer
from luce.supervisor.text import TextModel
from tests.http.answering.answering_fixtures import READ, assistant, system
from tests.http.answering.sessions_of_clients import SHAPES, asked, rules

LONG = rules("rule", 8)


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Iterator[TextModel]:
    with TextModel(tiny_model) as opened:
        yield opened


def render(model: TextModel, *messages: dict[str, Any], tools: tuple[dict[str, Any], ...] = ()) -> Rendered:
    return Renderer(model).render(ChatPrompt(messages=messages, tools=tools))


def behind(model: TextModel, rendered: Rendered) -> list[str]:
    """The text behind each mark."""
    return [
        model.detokenize(list(rendered.ids[mark:]), unparse_special=True).decode(errors="replace").lstrip()
        for mark in rendered.marks
    ]


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


@pytest.mark.parametrize(
    "local",
    [
        "/home/ada/work/alpha",
        "~ and then /Users/ada/x",
        "C:\\Users\\ada",
        "2026-11-24",
        "24.11.2026",
        "Tue Nov 24 2026",
        "November 24, 2026",
        "0199f1a2-0000-7000-8000-000000000001",
        "3f786850e387550fdab836ed7e6dc881de23001b",
        "v2.1.328",
    ],
)
def test_before_what_is_local(model: TextModel, local: str) -> None:
    rendered = render(model, system(f"{LONG} Here: {local} and so on. {LONG}"), user("Hello"))
    wanted = local.removeprefix("~ and then ")
    assert any(text.startswith(wanted[:3]) and wanted in text[: len(wanted) + 8] for text in behind(model, rendered))


@pytest.mark.parametrize(
    "common", ["/usr/bin/env", "~/.config/x", "a/b/c", "</cwd>", "https://example.org/a/b", "3.14"]
)
def test_what_all_have_gets_none(model: TextModel, common: str) -> None:
    rendered = render(model, system(f"{LONG} Here: {common} and so on. {LONG}"), user("Hello"))
    assert rendered.marks == ()


def test_of_the_folder_that_a_text_is_about_its_last_part_gets_one_too(model: TextModel) -> None:
    rendered = render(model, system(f"{LONG}\nWorking directory: /home/ada/work/some/where/alpha\n{LONG}"), user("Hi"))
    first, second = behind(model, rendered)
    assert first.startswith("/home/ada")
    assert second.startswith("alpha\n")


def test_behind_tools_and_blocks_of_system_text(model: TextModel) -> None:
    rendered = render(model, system(parts(LONG + " A", LONG + " B")), user(parts(LONG, LONG)), tools=(READ,))
    found = behind(model, rendered)
    assert any(text.startswith(LONG[:10]) and " B" in text for text in found)
    assert any(LONG not in text.split("<|im_start|>user")[0] and "read_file" in text for text in found)  # tools follow
    second = [text for text in found if text.lstrip(".\n").startswith(LONG[:10]) and text.count(LONG) == 1]
    assert second  # the user's second part, with the space before it


@pytest.mark.parametrize("name", ["task", "multi_agent_v1__close_agent", "Agent"])
def test_before_the_first_tool_that_starts_agents(model: TextModel, name: str) -> None:
    """There the prompt of a sub-agent, which is not offered it, parts from this one."""

    def tool(name: str) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, "description": LONG, "parameters": {}}}

    every = tuple(tool(own) for own in ("bash", "edit", name, "other_agent", "write"))
    rendered = render(model, system(LONG), user("Hello"), tools=every)
    assert any(text.startswith(f'{name}"') for text in behind(model, rendered))
    assert not any(text.startswith("other_agent") for text in behind(model, rendered))
    fewer = render(model, system(LONG), user("Hello"), tools=(*every[:2], every[-1]))
    n_shared = next(n for n, (a, b) in enumerate(zip(rendered.ids, fewer.ids, strict=False)) if a != b)
    assert n_shared in rendered.marks


def test_before_reminders_and_system_text_in_the_middle(model: TextModel) -> None:
    conversation = [system(LONG), user("Look"), assistant("I have looked."), user(LONG + " <system-reminder>Be quick")]
    rendered = render(model, *conversation, assistant("Yes."), user(LONG), system("<total_tokens>77</total_tokens>"))
    found = behind(model, rendered)
    assert any(text.startswith("<system-reminder>Be quick") for text in found)
    boundaries = [
        model.detokenize(list(rendered.ids[at:]), unparse_special=True).decode() for at in rendered.boundaries
    ]
    # A message of its own, or in the middle of the user's: the template decides.
    assert any("<total_tokens>" in text[:40] for text in (*found, *boundaries))


def test_marks_are_bounded_and_apart(model: TextModel) -> None:
    text = " ".join(f"On 2026-11-{day:02d} in /srv/{day}/data came v1.{day}.0." for day in range(10, 30))
    turns = [user(f"{LONG} <system-reminder>{n}</system-reminder>") for n in range(40)]
    answers = [assistant(f"Answer {n}.") for n in range(40)]
    rendered = render(model, system(text), *(each for pair in zip(turns, answers, strict=True) for each in pair))
    assert 0 < len(rendered.marks) <= 24
    at = sorted({*rendered.marks, *rendered.boundaries})
    assert all(b - a >= 8 for a, b in pairwise(at) if b in rendered.marks)


@pytest.mark.parametrize("client", SHAPES)
def test_a_head_is_found_once(model: TextModel, client: str) -> None:
    body = SHAPES[client][1](1, "/home/ada/work/alpha")
    prompt = asked(client, body, model).prompt
    assert isinstance(prompt, ChatPrompt)
    renderer = Renderer(model)
    rendered = renderer.render(prompt)
    asked_for: list[int] = []

    def piece(token: int) -> bytes:
        asked_for.append(token)
        return model.piece(token, special=True)

    assert rendered.chat is not None
    marks = PromptMarks(piece)
    found, head = marks.find(rendered.chat, prompt.messages)
    assert asked_for
    asked_for.clear()
    assert marks.find(rendered.chat, prompt.messages, (), head) == (found, head)
    assert asked_for == []


def test_inserts_of_earlier_turns_are_found_as_those_of_a_first_prompt(model: TextModel) -> None:
    renderer = Renderer(model)
    messages = [user("Hello")]
    turns = []
    for number in range(40):
        text = f"{LONG} <system-reminder>State {number}</system-reminder> {LONG}"
        messages = [*messages, assistant(f"Answer {number}"), user(text)]
        turns.append(messages)
    for turn in (*turns, turns[20], messages[:30], [*messages[:-1], user(LONG)]):
        marks = renderer.render(ChatPrompt(messages=turn)).marks
        assert marks == render(model, *turn).marks
        assert len(marks) == min(8, sum("reminder" in str(message) for message in turn))
