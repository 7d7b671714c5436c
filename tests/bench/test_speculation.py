"""The speculation benchmark in short: its prompts, pairing and arithmetic, and that it runs to its end. No times."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from pathlib import Path

import pytest

from scripts.bench.speculation import speculation
from scripts.bench.speculation.prompts import (
    SET_NAMES,
    PromptSetError,
    load_set,
)
from scripts.bench.speculation.sides import EngineSettings

# What a llama-server answers, and nothing of what it computes: the real one is no part of this repository. The widths
# differ in speed, so that one of them is the best.
STAND_IN = """\
#!/usr/bin/env python3
import http.server, json, sys
arguments = dict(zip(sys.argv[1:], sys.argv[2:]))
width = int(arguments.get("--spec-draft-n-max", 0))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({"status": "ok"})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        n = asked["n_predict"]
        timings = {"prompt_ms": 1.0, "predicted_n": n, "predicted_ms": (n - 1) * {0: 4.0, 2: 1.0, 5: 2.0}[width]}
        if width:
            timings |= {"draft_n": 2 * n, "draft_n_accepted": n}
        self.answer({"tokens": asked["prompt"][:1] * n, "timings": timings})
    def answer(self, value):
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(arguments["--port"])), Handler).serve_forever()
"""


def settings_of(tiny_model: Path, n_lanes: int = 1) -> EngineSettings:
    engine = Namespace(ubatch=512, threads=1, gpu_layers=0, cache_type="q8_0")
    return EngineSettings(tiny_model, Path("draft.gguf"), 512, n_lanes, engine, "f16")


# Prompts


def test_each_set_has_enough_different_prompts() -> None:
    prompts = [prompt for name in SET_NAMES for prompt in load_set(name)]
    assert set(SET_NAMES) == {"copy", "edit", "code", "chat", "tools"}
    assert all(len(load_set(name)) >= 25 for name in SET_NAMES)
    assert len({prompt.name for prompt in prompts}) == len(prompts)
    assert len({json.dumps(prompt.messages) for prompt in prompts}) == len(prompts)
    assert not any(re.search(r"\b(THING|VERB|VALUE|ITEM|NUM)", json.dumps(prompt.messages)) for prompt in prompts)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no prompts"),
        ("{}\n", r"copy\.jsonl:1"),
        ('{"id": "a", "messages": [{"role": "user", "content": "x"}]}\n[]\n', r"copy\.jsonl:2"),
        ('{"id": "a", "messages": []}\n', "no messages"),
        ('{"id": "a", "messages": [{"role": 1}]}\n', "no messages with roles"),
        ("not JSON\n", r"copy\.jsonl:1"),
    ],
)
def test_a_broken_set_is_refused_with_its_line(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "copy.jsonl").write_text(text)
    with pytest.raises(PromptSetError, match=what):
        load_set("copy", tmp_path)


# Pairing


@pytest.mark.parametrize("wrong", [["--pairs", "0"], ["--tokens", "1"], ["--prompts", "0"], ["--sets", "poems"]])
def test_what_measures_nothing_is_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        speculation.parse_arguments(wrong)


def test_llama_server_knows_the_options_that_it_is_given(tiny_model: Path, llama_templates_dir: Path) -> None:
    known = (llama_templates_dir.parents[1] / "common" / "arg.cpp").read_text()
    settings = settings_of(tiny_model)
    given = settings.server_arguments(*settings.server_draft_arguments(), "--spec-draft-n-max", "1")
    options = [word for word in given if word.startswith("-")]
    assert "--spec-type" in options
    assert [option for option in options if f'"{option}"' not in known] == []


# The whole


@pytest.mark.full_only
def test_it_runs_to_its_end_and_writes_its_figures(
    luced: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "figures.json"
    status = speculation.main([
        "--luced", str(luced), "--model", str(tiny_model), "--sets", "copy", "chat", "--prompts", "2", "--tokens", "6",
        "--pairs", "1", "--lanes", "1", "2", "--context", "0", "1024", "--threads", "1", "--fixed", "2",
        "--fixed-ngram", "on", "--json", str(out),
    ])  # fmt: skip
    assert status == 0
    groups = json.loads(out.read_text())["groups"]
    assert [(group["lanes"], group["context"]) for group in groups] == [(1, 0), (1, 1024), (2, 0), (2, 1024)]
    for group in groups:
        assert group["sides"] == ["plain", "gate", "fixed 2 ngram"]
        for name in ("copy", "chat"):
            for side in group["sides"]:
                passes = group["passes"][name][side]
                assert len(passes) == 2  # a cold one and a pair
                if group["lanes"] == 1:  # two answers of six tokens, without each one's first
                    assert [cell["n_decoded"] for cell in passes] == [10, 10]
                assert all((cell["speculation"] is None) == (side == "plain") for cell in passes)
        assert all(not same["clear"] and same["n_answers"] > 0 for same in group["same"].values())
    shown = capsys.readouterr().out
    assert "lanes 2, context 1024" in shown
    assert "gate / plain, worst" in shown


def test_llama_servers_best_width_is_found(
    luced: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = tmp_path / "llama-server"
    server.write_text(STAND_IN)
    server.chmod(0o755)
    out = tmp_path / "figures.json"
    status = speculation.main([
        "--luced", str(luced), "--model", str(tiny_model), "--vs", str(server), "--sets", "chat", "--prompts", "1",
        "--tokens", "5", "--pairs", "1", "--only", "server", "--server-widths", "2", "5", "--threads", "1",
        "--json", str(out),
    ])  # fmt: skip
    assert status == 0  # another program's text may be another one
    [group] = json.loads(out.read_text())["groups"]
    assert group["sides"] == ["plain", "server", "server 2", "server 5"]
    rates = group["figures"]["chat"]["tokens_per_s"]
    assert [rates[side] for side in group["sides"][1:]] == [250.0, 1000.0, 500.0]
    assert "2: 1000" in capsys.readouterr().out
