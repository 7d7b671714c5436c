"""`luce eval` as a shell starts it: against servers that answer rightly or wrongly, and with the packaged model."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from luce.supervisor.cli.entry import EXIT_BAD_ARGS
from luce.supervisor.cli.evaluation.asking import in_turns
from luce.supervisor.cli.evaluation.command import command
from luce.supervisor.cli.evaluation.sides import ServerSide
from luce.supervisor.cli.server_client import ServerClient, ServerError
from luce.supervisor.evaluating.code_runner import runs_to_its_end
from luce.supervisor.evaluating.question import Question, Reply, Scale
from luce.supervisor.evaluating.results import Results
from luce.supervisor.evaluating.run import NoRoomError, ask_all
from luce.supervisor.evaluating.suites import PACKAGED_AT_LEAST, SUITES
from luce.supervisor.evaluating.tasks import GENERATED
from luce.supervisor.evaluating.tasks.human_eval import human_eval_task
from luce.supervisor.evaluating.tasks.replay import replay_task
from luce.supervisor.evaluating.tasks.sums import gsm8k_task, math_task
from tests.cli.conftest import Run
from tests.cli.scripted_server import scripted
from tests.evaluating.oracle import Oracle, oracle
from tests.evaluating.published import write_all

LENGTHS, SEED = (300, 700), 5
SHORT = ["--lengths", "300,700", "--samples", "2", "--seed", "5"]
FULL_TIMEOUT_S = 3600
TASKS = {task.name: task for task in (*GENERATED, replay_task([]))}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_all(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def right(files: dict[str, Path]) -> Iterator[Oracle]:
    """Knows all that SHORT asks."""
    with oracle() as server:
        yield taught(server, files)


@pytest.fixture
def wrong(files: dict[str, Path]) -> Iterator[Oracle]:
    with oracle() as server:
        yield taught(server, files)


def taught(server: Oracle, files: dict[str, Path]) -> Oracle:
    side = ServerSide("it", ServerClient(server.url, None), "default", 0)
    for task in (
        *TASKS.values(),
        human_eval_task(files["humaneval"], None, runs_to_its_end),
        gsm8k_task(files["gsm8k"], None),
        math_task(files["math"], None),
    ):
        chars_per_token = side.chars_per_token(task.sample) if task.sample else 1.0
        server.learn(task.make(Scale(LENGTHS, 2, 2, SEED, chars_per_token)))
    return server


def evaluate(run: Run, *arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    return run("luce", "eval", *arguments, env={**os.environ, "COLUMNS": "160"})


def data_sets(files: dict[str, Path]) -> list[str]:
    return [word for name, path in files.items() for word in (f"--{name}", str(path))]


@pytest.mark.parametrize(
    ("models", "words", "asked"),
    [
        ('{"data": [{"id": "left"}, {"id": "right"}]}', [], "left"),
        ('{"data": [{"id": "left"}, {"id": "right"}]}', ["--name", "right"], "right"),
        ('{"data": "none"}', [], "default"),
        (None, [], "default"),
    ],
)
def test_a_model_that_is_there_is_asked(run: Run, models: str | None, words: list[str], asked: str) -> None:
    with scripted(*[(404, '{"error": "unknown"}')] * 2, models=models) as server:
        result = evaluate(run, "--url", server.url, "--tasks", "tools", *words, *SHORT)
    assert {body["model"] for body in server.asked} == {asked}
    assert (b"--name chooses among left, right" in result.stderr) == (asked == "left")


def test_right_answers_reach_all_that_is_wanted(run: Run, right: Oracle, files: dict[str, Path]) -> None:
    metrics = [metric for task in TASKS.values() for metric in task.metrics] + list(files)
    wanted = [word for metric in metrics for word in ("--at-least", f"{metric}=100%")]
    result = evaluate(run, "--url", right.url, *data_sets(files), "--run-code", "--json", *wanted, *SHORT)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert {row["metric"] for row in found["scores"]} == set(metrics)
    assert all(row["score"]["value"] == 1 and row["score"]["low"] < 1 for row in found["scores"])
    assert {row["length"] for row in found["scores"] if row["metric"] == "needle"} == {None, *LENGTHS}
    assert found["shortfalls"] == found["left_out"] == []
    assert found["settings"]["seed"] == SEED
    assert len(found["answers"]) == len({(a["task"], a["question"]) for a in found["answers"]})


def test_sides_are_compared_and_what_is_below_ends_with_1(run: Run, right: Oracle, wrong: Oracle) -> None:
    wrong.fault = lambda question, reply: Reply("no") if question.task == "needle" else reply
    wanted = ("needle=0.5", "needle-same=0.5", "needle-hop-same=1")
    at_least = [word for one in wanted for word in ("--at-least", one)]
    result = evaluate(run, "--url", wrong.url, "--vs", right.url, "--tasks", "needles", *at_least, *SHORT)
    assert result.returncode == 1
    shown = " ".join(result.stdout.decode().split())
    assert "url less vs" in shown
    assert "-100.0%" in shown
    below = result.stderr.decode().split("below --at-least", 1)[1]
    assert "needle is 0.0%, wanted at least 50.0%" in below
    assert "needle-same is 0.0%" in below
    assert "needle-hop" not in below


def test_a_plot_is_drawn(run: Run, right: Oracle, wrong: Oracle, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="left out: needs matplotlib, which the extra bench installs")
    for name, tasks in (("lengths.svg", "needles,tools"), ("none.svg", "tools")):
        picture = tmp_path / name
        result = evaluate(run, "--url", wrong.url, "--vs", right.url, "--tasks", tasks, "--plot", picture, *SHORT)
        assert result.returncode == 0, result.stderr
        assert b"<svg" in picture.read_bytes()


def test_lengths_without_room_are_said_and_are_below_what_is_wanted(run: Run, wrong: Oracle) -> None:
    wrong.most_chars = 2000
    some = evaluate(run, "--url", wrong.url, "--tasks", "needle,tools", "--at-least", "needle=1", *SHORT)
    assert some.returncode == 0, some.stderr
    assert "needle at 700 tokens: 2 left out: url: the server refuses (400): the prompt is too long" in " ".join(
        some.stdout.decode().split()
    )
    wrong.most_chars = 1100
    none = evaluate(run, "--url", wrong.url, "--tasks", "needle,tools", "--at-least", "needle=1", *SHORT)
    assert none.returncode == 1
    assert b"needle was not measured" in none.stderr
    nothing = evaluate(run, "--url", wrong.url, "--tasks", "needle", *SHORT)
    assert nothing.returncode == 1
    assert b"nothing could be asked" in nothing.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tasks", "needle,none"], "--tasks has no 'none'"),
        (["--tasks", "gsm8k"], "name its file with --gsm8k"),
        (["--at-least", "needle"], "is no NAME=SHARE"),
        (["--at-least", "needle=2"], "is no NAME=SHARE"),
        (["--at-least", "nothing=0.5"], "nothing of this name is asked"),
        (["--at-least", "needle-same=0.5"], "nothing of this name is asked"),
        (["--humaneval", "{humaneval}"], "allow it by --run-code"),
        (["--gsm8k", "{math}"], "there is no text under question"),
        (["--url", "http://x", "--ctx", "5"], "--ctx is for an engine of its own"),
        (["--url", "http://x", "--vs", "--ctx 5"], "--url has none"),
        (["--url", "ftp://x"], "is no address of a server"),
        (["--vs", "localhost"], "neither an address nor options"),
        (["--vs", "--ctx '5"], "No closing quotation"),
    ],
)
def test_what_cannot_be_asked(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.setattr("luce.supervisor.cli.evaluation.command.end_by_signals", lambda: None)
    with pytest.raises(click.ClickException) as error:
        command.main([word.format(**files) for word in arguments], standalone_mode=False)
    assert isinstance(error.value, click.UsageError) or error.value.exit_code == EXIT_BAD_ARGS
    assert said in error.value.format_message()


def test_a_server_that_is_not_there(run: Run) -> None:
    result = evaluate(run, "--url", "http://127.0.0.1:9", *SHORT)
    assert (result.returncode, result.stdout) == (1, b"")
    assert b"there is no server at" in result.stderr


# Sides, without a command line


def first(task: str) -> Question:
    return next(iter(TASKS[task].make(Scale(LENGTHS, 2, 2, SEED, 4.0))))


def test_a_busy_server_is_asked_again(wrong: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("luce.supervisor.cli.evaluation.sides._PAUSE_S", 0.0)
    question, side = first("needle"), ServerSide("it", ServerClient(wrong.url, None), "default", 0)
    wrong.learn([question])
    wrong.n_busy = 3
    assert side.answer(question).reply == question.right
    wrong.n_busy = 99
    with pytest.raises(ServerError, match="busy"):
        side.answer(question)


def test_thoughts_do_not_count_and_have_their_tokens(wrong: Oracle) -> None:
    question, side = first("needle"), ServerSide("it", ServerClient(wrong.url, None), "default", 500)
    wrong.learn([question])
    wrong.fault = lambda _, reply: Reply(f"<think>\n12345?\n</think>\n\n{reply.text}")
    assert side.answer(question).reply == question.right
    assert wrong.asked[-1]["max_tokens"] == question.max_tokens + 500
    wrong.most_chars = 10
    with pytest.raises(NoRoomError):
        side.answer(question)


def test_another_side_begins_each_time(right: Oracle, wrong: Oracle) -> None:
    began: list[str] = []

    class Recorder(ServerSide):
        def answer(self, question: Question):  # type: ignore[no-untyped-def]  # noqa: ANN202
            began.append(self.name)
            return super().answer(question)

    sides = [Recorder(name, ServerClient(server.url, None), "default", 0) for name, server in
             (("a", right), ("b", wrong))]  # fmt: skip
    asked = list(ask_all(sides, [first("needle")] * 3, 1))
    assert began == ["a", "b", "b", "a", "a", "b"]
    assert all([outcome.side for outcome in one.outcomes] == ["a", "b"] for one in asked)


def test_ctrl_c_shows_what_was_answered(bin_dir: Path, wrong: Oracle) -> None:
    wrong.n_answers = 2
    command = [str(bin_dir / "luce"), "eval", "--url", wrong.url, "--tasks", "needle,tools", *SHORT]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr is not None
        assert running.stdout is not None
        said = iter(running.stderr)
        assert re.match(r"luce eval: about \d+ s for 6 questions$", next(said))
        assert re.match(r"needle .*: url 100%, about \d+ s left$", next(said))
        assert next(said).startswith("needle")
        running.send_signal(signal.SIGINT)
        shown = running.stdout.read()
        assert running.wait(60) == 130
    assert "ended early: told to stop; 2 of 6 questions were asked" in shown


def test_the_time_of_minutes_is_up(run: Run, wrong: Oracle) -> None:
    wrong.n_answers = 2
    limits = ("--at-least", "tools-formed=1", "--minutes", "0.1")
    result = evaluate(run, "--url", wrong.url, "--tasks", "needle,tools", *limits, *SHORT)
    assert result.returncode == 3, result
    assert b"the time is up (--minutes 0.1)" in result.stdout + result.stderr


def test_tasks_take_turns_where_the_time_is_limited_and_what_was_not_come_to_is_not_below() -> None:
    questions = [first(name) for name in ("needle", "tools", "needle-hop")]
    groups = [[questions[0]] * 4, [questions[1]] * 2, [questions[2]] * 8]
    order = [question.task for question in in_turns(groups)]
    assert {name: order.count(name) for name in order} == {"needle": 4, "tools": 2, "needle-hop": 8}
    half = order[:7]
    assert {name: half.count(name) for name in half} == {"needle": 2, "tools": 1, "needle-hop": 4}
    results = Results({"it": ""}, [TASKS["needle"]], {}, {"needle": 0.5})
    assert [str(one) for one in results.shortfalls()] == ["needle was not measured, wanted at least 50.0%"]
    results.ended = "the time is up"
    assert results.shortfalls() == []


# The packaged model


def test_the_packaged_model_reaches_what_is_known_of_it(run: Run, bin_dir: Path, full: bool) -> None:
    """The quick suite as it is; in the short form some of the tasks and fewer questions."""
    if full:
        command = [str(bin_dir / "luce"), "eval", "--threads", "1", "--json"]
        result = subprocess.run(command, capture_output=True, timeout=FULL_TIMEOUT_S, check=False)
    else:
        short = ["--tasks", "needle-many,tools,replay", "--samples", "4", "--lengths", "400"]
        result = evaluate(run, "--threads", "1", "--json", *short)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    metrics = {row["metric"] for row in found["scores"]}
    assert metrics.issuperset(found["at_least"])
    assert found["at_least"] == {name: share for name, share in PACKAGED_AT_LEAST.items() if name in metrics}
    assert len(found["at_least"]) >= 5
    if full:
        assert metrics == {metric for task in TASKS.values() for metric in task.metrics}
        assert {row["n"] for row in found["scores"] if row["metric"] == "needle"} == {SUITES["quick"].n_samples}


def test_a_setting_that_loses_the_text_is_found(run: Run) -> None:
    """The newest pages alone, of a text twice as long: the same questions to a second engine with these options."""
    result = evaluate(
        run, "--threads", "1", "--lanes", "1", "--tasks", "needle", "--samples", "2", "--lengths", "1300", "--json",
        "--at-least", "needle-same=0.9", "--vs", "--ubatch 64 --kv-offload 512 --kv-offload-policy lru",
    )  # fmt: skip
    assert result.returncode == 1, result.stderr
    assert b"below --at-least: needle-same" in result.stderr
    found = json.loads(result.stdout)
    assert found["sides"]["vs"] == "the same with --ubatch 64 --kv-offload 512 --kv-offload-policy lru"
    whole, newest = (next(row for row in found["scores"] if row["side"] == side) for side in ("luce", "vs"))
    assert whole["score"]["value"] == 1
    assert newest["score"]["value"] <= 0.5
    (difference,) = found["differences"]
    assert difference["n_better"] >= 1
    assert difference["n_worse"] == 0
