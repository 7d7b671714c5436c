"""The cell `agents` of docs/benchmarks/real.md in short: it runs to its end on the packaged model, its three APIs say
the same, and its tools stay in their folder."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.text import TextModel
from scripts.bench.real import agents
from scripts.bench.real.agent_apis import APIS, TOOL_APIS
from scripts.bench.real.agent_tools import FUNCTIONS, SYSTEM, scratch_folder
from scripts.bench.real.rows import Setup
from scripts.bench.replay.dialects import prompt_of

SMALLEST = agents.Volume(n_tasks=2, n_answer=4, seeds=(), n_sessions=1, n_turns=2, n_ctx=4096, system_bytes=200)


def test_agents_runs_to_its_end(luced: Path, tiny_model: Path, full: bool) -> None:
    apis = APIS if full else APIS[:1]
    setup = Setup("luce-tiny", tiny_model, luced, None, 0, 1, "q8_0", 512, quick=True)
    rows = {row.what: row for row in agents.measure(setup, replace(SMALLEST, apis=apis))}
    for api in apis:
        ways = ["recorded"]
        if api in TOOL_APIS:
            ways.append("live")
            assert rows[f"live, {api.name}: answers"].ours >= 2
            assert rows[f"live, {api.name}: share with a leaked call"].is_met
        for way in ways:
            read = rows[f"{way}, {api.name}: read anew of what is new"]
            assert 0.9 < read.ours < (1.5 if api in TOOL_APIS else 3), read  # texts have no marks of messages
        assert rows[f"recorded, {api.name}: first token of warm turns"].ours > 0


def test_the_apis_tell_the_same_conversation(tiny_model: Path) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a"}'}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "Look"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "Text."},
    ]
    with TextModel(tiny_model) as model:
        read = [prompt_of(api.path, {"model": "m", **api.body(messages, FUNCTIONS, 5)}, model) for api in TOOL_APIS]
        texts = []
        for prompt in read:
            with closing(model.render(prompt.messages, tools=list(prompt.tools))) as chat:
                texts.append(chat.prompt)
    assert "Text." in texts[0]
    assert texts == [texts[0]] * len(TOOL_APIS)


def test_tools_do_what_they_say_and_stay_in_their_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    with scratch_folder() as folder:
        assert "glossary.md" in folder.call("list_files", {"path": "/docs"})
        assert folder.call("write_file", {"path": "new/a.txt", "content": "one\n"}) == "wrote 4 characters"
        assert folder.call("read_file", {"path": "new/a.txt"}) == "one\n"
        assert folder.call("run", {"command": "grep -c one new/a.txt"}) == "1\n"
        assert folder.call("run", {"command": "grep two new/a.txt"}) == "(status 1, and no output)"
        outside = str(tmp_path / "secret")
        for name, arguments in (
            ("read_file", {"path": f"../../../../..{outside}"}),
            ("read_file", {"path": "none.txt"}),
            ("list_files", {}),
            ("run", {"command": "rm README.md"}),
            ("run", {"command": f"head {outside}"}),
            ("run", {"command": f"grep --file={outside} README.md"}),
            ("run", {"command": "ls .."}),
            ("run", {"command": "ls 'unclosed"}),
            ("run", {"command": ""}),
        ):
            assert folder.call(name, arguments).startswith("error: "), arguments


@pytest.mark.parametrize(
    ("text", "is_leaked"),
    [
        (json.dumps({"name": "run", "arguments": {}}), True),
        ('I do: {"arguments": {}, "name" : "read_file"', True),
        ('{"name": "runner"}', False),
        ("I run it.", False),
    ],
)
def test_leaked_calls_are_known(text: str, is_leaked: bool) -> None:
    assert agents.is_leaked(text) is is_leaked
