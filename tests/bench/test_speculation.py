"""The speculation benchmark in short: its prompts, pairing and arithmetic, and that it runs to its end. No times."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from pathlib import Path

import pytest

from luce.protocol import Speculation
from luce.supervisor.text import TextModel
from scripts.bench.harness import in_turns
from scripts.bench.speculation import speculation
from scripts.bench.speculation.prompts import (
    SET_NAMES,
    PromptSetError,
    RenderedPrompt,
    filler,
    load_rendered,
    load_set,
    render,
)
from scripts.bench.speculation.report import SERVER, Cell, Group, Sameness, figures, verdicts
from scripts.bench.speculation.sides import Answered, EngineSettings, LucedSide, Wave, server_wave

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


def rendered(name: str, n: int = 3) -> RenderedPrompt:
    return RenderedPrompt(name, name.partition("-")[0], tuple(range(n)), ())


def wave_of(name: str, tokens: tuple[int, ...], seconds: float = 1.0, told: Speculation | None = None) -> Wave:
    return Wave(seconds, len(tokens) - 1, seconds, (Answered(name, tokens, told),))


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


def test_a_missing_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptSetError, match="no set copy"):
        load_set("copy", tmp_path)


def test_prompts_are_what_the_models_template_makes_of_them(tiny_model: Path) -> None:
    sets = load_rendered(tiny_model, n_prompts=4)
    with TextModel(tiny_model) as model:
        for name in SET_NAMES:
            assert len(sets[name]) == 4
            for prompt, source in zip(sets[name], load_set(name), strict=False):
                text = model.detokenize(prompt.ids, unparse_special=True).decode()
                last = source.messages[-1]["content"]
                assert text.startswith("<|im_start|>")
                # An answer that has begun is left open, everything else waits for one.
                end = last if source.goes_on else "<|im_start|>assistant\n"
                assert text.rstrip("\n").endswith(end.rstrip("\n"))
                assert ("<tools>" in text) == bool(source.tools)
                assert prompt.n_shared == 0


def test_a_context_is_the_same_conversation_before_every_prompt(tiny_model: Path) -> None:
    n_context = 1500
    [rows] = load_rendered(tiny_model, ["copy"], n_context=n_context, n_prompts=5).values()
    [again] = load_rendered(tiny_model, ["copy"], n_context=n_context, n_prompts=5).values()
    [other] = load_rendered(tiny_model, ["copy"], n_context=n_context, n_prompts=5, seed=1).values()
    [alone] = load_rendered(tiny_model, ["copy"], n_prompts=5).values()
    assert rows == again
    n_shared = rows[0].n_shared
    assert n_context - 500 < n_shared <= n_context
    assert {row.n_shared for row in rows} == {n_shared}
    assert len({row.ids[:n_shared] for row in rows}) == 1
    assert rows[0].ids[:n_shared] != other[0].ids[:n_shared]
    for row, own in zip(rows, alone, strict=True):
        # The prefix of a message ("<|im_start|>user") may be shared with the one that it is compared with.
        assert row.ids[-len(own.ids) :] == own.ids
        assert 0 <= n_shared - (len(row.ids) - len(own.ids)) < 8
        assert len(row.ids) - len(own.ids) in row.marks


def test_a_context_shorter_than_a_message_is_none(tiny_model: Path) -> None:
    with TextModel(tiny_model) as model:
        assert filler(model, 5, 0) == []
        assert render(model, load_set("chat")[0], []).n_shared == 0


# Pairing


def test_lanes_are_filled_with_answers_of_like_length() -> None:
    prompts = [rendered(f"copy-{i}") for i in range(5)]
    n_answers = {"copy-0": 9, "copy-1": 1, "copy-2": 8, "copy-3": 2, "copy-4": 5}
    names = [[p.name for p in wave] for wave in speculation.waves_of(prompts, 2, n_answers)]
    assert names == [["copy-1", "copy-3"], ["copy-4", "copy-2"], ["copy-0", "copy-1"]]
    assert [len(wave) for wave in speculation.waves_of(prompts, 4, {})] == [4, 4]
    assert [len(wave) for wave in speculation.waves_of(prompts, 8, {})] == [5]
    assert [[p.name for p in wave] for wave in speculation.waves_of(prompts, 1, n_answers)] == [
        [f"copy-{i}"] for i in range(5)
    ]


def test_sides_go_first_in_turns(luced: Path, tiny_model: Path) -> None:
    with (
        LucedSide.start("a", luced, settings_of(tiny_model)) as a,
        LucedSide.start("b", luced, settings_of(tiny_model)) as b,
    ):
        orders = [[side.name for side in in_turns([a, b], turn)] for turn in range(3)]
    assert orders == [["a", "b"], ["b", "a"], ["a", "b"]]


def test_every_side_gets_its_own_options_and_nothing_else() -> None:
    args = speculation.parse_arguments(
        [
            "--draft",
            "d.gguf",
            "--fixed",
            "4",
            "8",
            "--server-widths",
            "3",
            "--vs",
            "server",
            "--draft-arguments",
            "--x y",
        ]
    )
    draft = ["--draft", "d.gguf", "--x", "y"]
    assert speculation.side_arguments(args, 1) == {
        "plain": ["--draft-max", "0"],
        "gate": draft,
        "fixed 4 ngram": [*draft, "--draft-adaptive", "off", "--draft-max", "4", "--draft-ngram", "on"],
        "fixed 8 ngram": [*draft, "--draft-adaptive", "off", "--draft-max", "8", "--draft-ngram", "on"],
        "fixed 4": [*draft, "--draft-adaptive", "off", "--draft-max", "4", "--draft-ngram", "off"],
        "fixed 8": [*draft, "--draft-adaptive", "off", "--draft-max", "8", "--draft-ngram", "off"],
        "server": [],
        "server 3": ["--spec-draft-n-max", "3"],
    }
    assert not [name for name in speculation.side_arguments(args, 2) if name.startswith(SERVER)]
    args.only = ["gate", "server"]
    args.draft = speculation.parse_arguments(["--draft", "none"]).draft
    assert speculation.side_arguments(args, 1) == {"plain": ["--draft-max", "0"], "gate": ["--x", "y"], "server": []}


def test_quick_leaves_what_was_given() -> None:
    args = speculation.parse_arguments(["--quick", "--tokens", "12"])
    assert (args.tokens, args.pairs, args.fixed, args.prompts) == (12, 2, [4], 4)


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


# Arithmetic


def test_a_cell_is_the_sum_of_tokens_by_the_sum_of_seconds() -> None:
    told = Speculation(10, 4, 6, 5, 0.25, 0.5)
    cell = Cell.of([wave_of("a", (1,) * 11, 2.0, told), wave_of("b", (1,) * 31, 3.0, told), wave_of("c", (1,), 0.0)])
    assert (cell.n_decoded, cell.seconds, cell.rate) == (40, 5.0, 8.0)
    assert cell.speculation == Speculation(20, 8, 12, 10, 0.5, 1.0)
    assert cell.tokens_per_step == pytest.approx(1 + 8 / 12)
    assert (cell.acceptance, cell.accepted_per_draft) == (0.4, 0.8)
    assert cell.speculated == pytest.approx(10 / 12)
    assert cell.draft_share == pytest.approx(0.1)


def test_what_was_not_said_is_not_zero() -> None:
    cell = Cell.of([wave_of("a", (1, 2))])
    assert cell.speculation is None
    assert (cell.tokens_per_step, cell.acceptance, cell.speculated, cell.draft_share) == (None, None, None, None)
    never = Cell.of([wave_of("a", (1, 2), told=Speculation(n_steps=1))])
    assert (never.tokens_per_step, never.speculated, never.acceptance, never.accepted_per_draft) == (
        1.0,
        0.0,
        None,
        None,
    )


def group_of(rates: dict[str, dict[str, list[int]]]) -> Group:
    """Tokens in one second, pass by pass, of each set and side."""
    sides = tuple(next(iter(rates.values())))
    cells = {(name, side): [Cell(n, 1.0) for n in row[side]] for name, row in rates.items() for side in sides}
    return Group(1, 0, tuple(rates), sides, cells)


def test_ratios_are_medians_over_the_warm_pairs() -> None:
    group = group_of({
        "copy": {
            "plain": [10, 10, 20, 10], "gate": [5, 20, 30, 40], "fixed 2": [99, 20, 20, 20], "fixed 4": [1, 50, 50, 50],
        },
        "chat": {
            "plain": [10, 10, 10, 10], "gate": [10, 10, 10, 9], "fixed 2": [1, 20, 20, 20], "fixed 4": [1, 2, 2, 2],
        },
    })  # fmt: skip
    copy, chat, both = (figures(group, sets) for _, sets in group.rows())
    assert copy["to_plain"] == {"median": 2.0, "low": 1.5, "high": 4.0}
    assert copy["cold_to_plain"] == 0.5
    assert (copy["best_fixed"], chat["best_fixed"], both["best_fixed"]) == ("fixed 4", "fixed 2", "fixed 4")
    assert both["to_plain"] == {"median": 1.5, "low": pytest.approx(40 / 30), "high": 49 / 20}
    # One setting for all sets: 52 tokens in 2 seconds. The best of each set: 70.
    assert both["to_best_fixed"]["median"] == pytest.approx(40 / 52)
    assert both["to_best_fixed_of_each"]["median"] == pytest.approx(40 / 70)
    assert [name for name, _ in group.rows()] == ["copy", "chat", "all"]
    found = {verdict.what: verdict for verdict in verdicts([group])}
    assert found["gate / plain, worst"].value == 1.0
    assert found["gate / best fixed of each set, worst"].value == pytest.approx(0.5)
    assert "NOT reached" in str(found["gate / best fixed of each set, worst"])
    assert not any("llama-server" in what for what in found)


def test_until_the_last_answer_has_ended_is_another_ratio() -> None:
    """Lanes that drafts carry ahead end sooner, the last one may not."""
    cells = {
        ("copy", "plain"): [Cell(10, 1.0, 9.0), Cell(10, 1.0, 2.0), Cell(10, 1.0, 3.0), Cell(10, 1.0, 2.0)],
        ("copy", "gate"): [Cell(10, 0.5, 1.0), Cell(10, 0.5, 2.0), Cell(10, 0.5, 2.0), Cell(10, 0.5, 2.5)],
    }
    row = figures(Group(8, 0, ("copy",), ("plain", "gate"), cells), ("copy",))
    assert row["to_plain"]["median"] == 2.0
    assert row["to_plain_until_last"] == {"median": 1.0, "low": 0.8, "high": 1.5}


def test_of_several_processes_the_cold_pass_counts_once() -> None:
    one = group_of({"copy": {"plain": [10, 10, 20], "gate": [5, 20, 30]}})
    other = group_of({"copy": {"plain": [1, 10, 10], "gate": [2, 11, 12]}})
    one.same["gate"], other.same["gate"] = Sameness(2, ["copy-01: step 3"], []), Sameness(2, [], ["copy-02: step 1"])
    both = one.joined(other)
    assert both.cells["copy", "gate"] == [Cell(n, 1.0) for n in (5, 20, 30, 11, 12)]
    assert both.same["gate"] == Sameness(4, ["copy-01: step 3"], ["copy-02: step 1"])
    assert figures(both, ("copy",))["to_plain"] == {"median": 1.35, "low": 1.1, "high": 2.0}


def test_llama_servers_answer_is_read_as_it_comes() -> None:
    timings = {"prompt_ms": 200.0, "predicted_n": 5, "predicted_ms": 50.0, "draft_n": 8, "draft_n_accepted": 3}
    wave = server_wave("copy-1", {"tokens": [1, 2, 3, 4, 5], "timings": timings}, 0.3)
    assert (wave.seconds, wave.n_decoded) == (0.05, 4)
    assert wave.wall_s == pytest.approx(0.1)
    assert wave.answers[0] == Answered("copy-1", (1, 2, 3, 4, 5), Speculation(8, 3))
    del timings["draft_n"]
    assert server_wave("copy-1", {"tokens": [1], "timings": timings}, 0.3).answers[0].speculation is None


# Exactness


def test_the_first_difference_counts() -> None:
    assert speculation.first_difference((1, 2, 3), (1, 2, 3)) is None
    assert speculation.first_difference((1, 5, 3), (1, 2, 3)) == 1
    assert speculation.first_difference((1, 2), (1, 2, 3)) == 2
    assert speculation.first_difference((), ()) is None


def test_differences_are_told_apart_by_plain_decodings_margin(luced: Path, tiny_model: Path) -> None:
    [rows] = load_rendered(tiny_model, ["chat"], n_prompts=1).values()
    [prompt] = rows
    with LucedSide.start("plain", luced, settings_of(tiny_model)) as plain:
        wave = plain.answer([prompt], 6)
        tokens = wave.answers[0].tokens
        margins = plain.margins(prompt, 6)
        assert len(margins) == len(tokens) == 6
        wrong = wave_of(prompt.name, (*tokens[:3], tokens[3] + 1, *tokens[4:]))
        found = {}
        for noise in (margins[3] * 0.99, margins[3] * 1.01):
            comparer = speculation.Comparer(plain, [prompt], 6, noise)
            found[noise] = same = Sameness()
            comparer.compare("gate", wave, wave, same)
            comparer.compare("gate", wrong, wave, same)
            assert same.n_answers == 2
        strict, lenient = found.values()
        assert (len(strict.clear), len(strict.unclear)) == (1, 0)
        assert (len(lenient.clear), len(lenient.unclear)) == (0, 1)
        assert "step 3" in strict.clear[0]
        # An answer that only ends early is wrong whatever the margin is.
        comparer.compare("gate", wave_of(prompt.name, tokens[:4]), wave, lenient)
        assert len(lenient.clear) == 1


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


def test_a_context_without_room_for_a_conversation_is_refused(luced: Path, tiny_model: Path) -> None:
    arguments = ["--luced", str(luced), "--model", str(tiny_model), "--sets", "copy", "--context", "300"]
    with pytest.raises(SystemExit, match=r"--context 300 leaves no room .* use at least \d+"):
        speculation.main(arguments)


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
