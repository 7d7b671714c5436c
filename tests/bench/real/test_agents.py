"""The cell `agents` of docs/benchmarks/real.md in short: it runs to its end on the packaged model, its three APIs say
the same, and its tools stay in their folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from scripts.bench.real import agents
from scripts.bench.real.agent_apis import APIS, TOOL_APIS
from scripts.bench.real.agent_tools import scratch_folder
from scripts.bench.real.rows import Setup

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
