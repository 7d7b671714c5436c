"""What the clients' tasks are made of (scripts/clients): answers that are steered, and what was read for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.http.prompts.rendering import Renderer
from luce.supervisor.text import TextModel
from scripts.clients.steering import Answer, Steering, literal, read_steering
from scripts.clients.tokens_read import Row, complaints, read_steps, rows, show
from tests.clients.recorded import NAMES, recorded

ANSWERS = Path(__file__).resolve().parents[2] / "scripts" / "clients" / "answers"
READ = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}
STEERING = Steering({"Read it": [Answer("<call>", True, {}), Answer("Done ID.", False, {"ID": "id=([0-9]+)"})]})


@pytest.fixture(scope="module")
def text(tiny_model: Path) -> Iterator[TextModel]:
    with TextModel(tiny_model) as model:
        yield model


def offered(client: str) -> set[str]:
    """Names as the model knows them."""
    names = set()
    for tool in recorded(client)["first_turn"].body()["tools"]:
        for inner in tool.get("tools", [tool]):
            name = inner.get("function", inner).get("name")
            names.add(f"{tool['name']}__{name}" if inner is not tool else name)
    return names


@pytest.mark.parametrize("client", NAMES)
async def test_the_answers_call_what_the_client_offers(text: TextModel, client: str) -> None:
    async def render(messages: list[dict[str, Any]], opens_answer: bool) -> str:
        return Renderer(text).prompt_text(ChatPrompt(messages=messages, opens_answer=opens_answer), "", "")

    script = (ANSWERS / f"{client}.json").read_text()
    said = json.loads(script)
    called = {name for answers in said.values() for answer in answers for name, _ in answer.get("calls", ())}
    assert called <= offered(client)
    steering = await read_steering(script, Path("/home/ada"), render)
    first = steering.answers["Copy the last line of notes.txt"][0]
    assert first.calls
    assert first.written.startswith("I read the notes first.\n<tool_call>\n{")
    assert first.written.endswith("}\n</tool_call>")
    last = steering.answers["Finally, append"][-1]
    assert (last.calls, last.written) == (False, said["Finally, append"][-1]["text"])


def grammar(messages: list[dict[str, Any]], *, field: str = "messages", **fields: Any) -> str | None:
    answer: str | None = STEERING.steer({field: messages, "tools": [READ], **fields}).get("grammar")
    return answer


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


ASSISTANT = {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "tool_use", "id": "x"}]}


def test_the_latest_words_of_the_user_say_what_is_answered() -> None:
    assert grammar([user("Hello")]) is None
    assert grammar([user("Read it"), ASSISTANT, user("Hello")]) == 'root ::= "Done ID."'
    assert grammar([user([{"type": "text", "text": "Please. Read it!"}])]) == 'root ::= "<call>"'
    assert grammar([user("Read it")], tools=[]) is None
    result = user([{"type": "tool_result", "tool_use_id": "x", "content": "Read it: id=7"}])
    assert grammar([user("Read it"), ASSISTANT, result]) == 'root ::= "Done 7."'
    assert grammar([user("Read it"), ASSISTANT, result, ASSISTANT, result]) == 'root ::= "Done 7."'
    assert grammar([user("Read it"), ASSISTANT, user("Read it")]) == 'root ::= "<call>"'


def test_what_is_said_in_several_items_is_one_answer() -> None:
    items: list[dict[str, Any]] = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Read it"}]},
        {"type": "reasoning", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "function_call", "name": "read", "arguments": "{}", "call_id": "x"},
        {"type": "function_call_output", "call_id": "x", "output": "id=3"},
    ]
    assert grammar(items, field="input") == 'root ::= "Done 3."'


def test_a_literal() -> None:
    assert literal('a\\n"b"\n') == r'"a\\n\"b\"\n"'


def chat(messages: list[dict[str, Any]], answer: str, n_prompt: int, n_cached: int) -> dict[str, Any]:
    return {
        "path": "/v1/chat/completions", "body": {"messages": messages, "tools": [READ]}, "is_steered": True,
        "started_s": float(len(messages)), "status": 200, "n_prompt": n_prompt, "n_cached": n_cached,
        "finish": "stop", "error": "", "answer": [{"role": "assistant", "content": answer}],
    }  # fmt: skip


def test_what_was_read_against_what_was_new(text: TextModel, tmp_path: Path) -> None:
    first = [user("Read it")]
    # Sent back with white space at its end: what it says is known.
    second = [*first, {"role": "assistant", "content": "All is well. "}, user("And now?")]
    path = tmp_path / "records.jsonl"
    lines = [
        {"step": "task"}, chat(first, "All is well.", 150, 0), {"step": "sub_agent", "cannot": "none"},
        {"step": "after"}, chat(second, "Yes.", 170, 155), {"step": "after again"}, chat(second, "Yes.", 170, 0),
    ]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    steps = read_steps(path)
    told = list(rows(steps, text))
    task, none, after, again = told
    assert none == Row("sub_agent", 0, 0, 0, 0)
    assert (task.n_read, after.n_read, again.n_read) == (150, 15, 170)
    assert 100 < task.n_ideal < 200
    assert 10 <= after.n_ideal <= 20
    assert again.n_ideal <= 1
    assert complaints(steps, told)[-1].startswith("after again: 170 tokens read")
    assert "| pi | sub_agent | - | - | - | - | - |" in show("pi", steps, told)
    assert "pi, sub_agent: none" in show("pi", steps, told)


def test_what_a_client_does_not_do_is_named(text: TextModel, tmp_path: Path) -> None:
    broken = {**chat([user("Read it")], "", 150, 0), "status": 500, "error": "no", "finish": "", "answer": []}
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [{"step": "task"}, broken]))
    steps = read_steps(path)
    told = list(rows(steps, text))
    assert complaints(steps, told) == [
        "task: status 500 no",
        "task: nothing was asked that has an answer in the script",
    ]
    assert show("pi", steps, told)[-1] == "pi, task: 1 requests came to no end"
