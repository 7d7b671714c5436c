"""`luce fieldtest` as a shell starts it, with the packaged model: its files, what they do not tell, and its endings."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import jsonschema_rs
import pytest

from luce.supervisor.cli.fieldtest.report import read_report, schema
from tests.cli.conftest import Run

SMALL = ("--volume", "small", "--threads", "1", "--no-warmup", "--lanes", "4", "--draft", "none")
USER, FOLDER = "walter-the-tester", "private-models"


def files_in(folder: Path) -> tuple[Path, Path]:
    """The JSON and the Markdown file; there are no others."""
    [data, page] = sorted(folder.iterdir())
    assert re.fullmatch(r"fieldtest-luce-tiny-q8-0-[a-z0-9.-]+-\d{4}-\d{2}-\d{2}\.json", data.name)
    assert page == data.with_suffix(".md")
    return data, page


def test_every_part_is_measured_and_nothing_private_is_told(run: Run, tmp_path: Path, tiny_model: Path) -> None:
    home = tmp_path / USER
    model = home / FOLDER / tiny_model.name
    model.parent.mkdir(parents=True)
    shutil.copy(tiny_model, model)
    environment = {**os.environ, "HOME": str(home), "USER": USER, "LOGNAME": USER}
    out = tmp_path / "reports"
    arguments = ("--model", model, "--out", out, "--note", f"run by {USER} in {home}")
    result = run("luce", "fieldtest", *arguments, *SMALL, env=environment)
    assert result.returncode == 0, result
    assert re.search(rb"luce fieldtest: about \d+ (s|min) \(small volume, \d+ steps\)", result.stderr)
    data, page = files_in(out)
    assert result.stdout.decode().split() == [str(data), str(page)]
    for path in (data, page):
        text = path.read_text()
        for private in (str(tmp_path), FOLDER, USER, socket.gethostname()):
            assert private not in text
    jsonschema_rs.validate(schema(), json.loads(data.read_text()))
    report = read_report(data)
    assert {name: part.state for name, part in report.parts.items()} == dict.fromkeys(
        ("exactness", "service", "agent", "drafts"), "done"
    )
    assert report.parts["service"].why == "16 answers at once: --lanes is 4"
    assert report.notes == ["run by … in …"]
    assert set(report.engine.options) == {"--threads 1", "--no-warmup", "--lanes 4", "--draft …"}
    assert report.model.file == tiny_model.name
    assert {row.check: row.verdict for row in report.exactness} == {
        "reuse": "passed", "restore": "passed", "lanes": "passed", "ngrams": "passed", "drafter": "left out",
    }  # fmt: skip
    assert [row.depth for row in report.service.depths] == [64, 512]
    assert [row.n for row in report.service.lanes] == [1, 4]
    assert len(report.service.load_s) == 3
    assert len(report.agent) == 3
    assert all(turn.n_read < turn.n_prompt for turn in report.agent[1:])
    assert [turn.cold_first_token_s is None for turn in report.agent] == [True, True, False]
    assert [row.kind for row in report.drafts] == ["edit", "chat", "json"]
    assert all(row.is_same_text for row in report.drafts)
    assert all((row.busy_ratio is None) == bool(report.machine.gpus) for row in report.drafts)
    checked = run("luce", "fieldtest", "--check", data)
    assert (checked.returncode, b"a report of luce-tiny-Q8_0.gguf on " in checked.stdout) == (0, True)


def test_ctrl_c_leaves_a_report_that_says_so(bin_dir: Path, tmp_path: Path) -> None:
    command = [str(bin_dir / "luce"), "fieldtest", "--out", str(tmp_path), *SMALL]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        next(line for line in running.stderr if line.startswith("exactness: "))
        running.send_signal(signal.SIGINT)
        assert running.wait(120) == 130
    report = read_report(files_in(tmp_path)[0])
    assert report.ended == "told to stop"
    assert report.parts["drafts"].state == "cut"
    assert [row.check for row in report.exactness][:1] == ["reuse"]


def test_without_time_nothing_is_measured_and_nothing_written(run: Run, tmp_path: Path) -> None:
    result = run("luce", "fieldtest", "--minutes", "0", "--out", tmp_path, *SMALL)
    assert result.returncode == 3, result
    assert b"the time is up (--minutes 0) before anything was measured" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--check", "none.json"), 1, b"none.json: No such file"),
        (("--check", __file__), 1, b"is no report of luce fieldtest"),
        (("--model", "none.gguf"), 2, b"none.gguf: there is no such file"),
        (("--volume", "huge"), 64, b"'huge' is not one of"),
    ],
)
def test_wrong_use_is_told(run: Run, tmp_path: Path, arguments: tuple[str, ...], code: int, said: bytes) -> None:
    result = run("luce", "fieldtest", "--out", tmp_path, *arguments)
    assert (result.returncode, said in result.stderr) == (code, True), result
