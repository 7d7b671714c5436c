"""`luce cache`, and who may read what a server writes: over a server with all the folders that it can have."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.cli.conftest import Run

START_S = 120.0
SECRET = "the cat's name is Xanthippe"  # what nobody is to find in a log


@dataclass(frozen=True)
class Serving:
    folder: Path
    url: str

    @property
    def cache(self) -> Path:
        return self.folder / "state" / "cache"

    def ask(self, text: str = SECRET) -> dict[str, Any]:
        body = {"max_tokens": 4, "messages": [{"role": "user", "content": f"{text}. " * 150}]}
        answer = httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=START_S)
        assert answer.status_code == 200, answer.text
        usage: dict[str, Any] = answer.json()["usage"]
        return usage


@pytest.fixture(scope="module")
def serving(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("serving")
    state = folder / "state"
    state.mkdir(mode=0o755)
    (state / "slots").mkdir(mode=0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LUCE_API")}
    options = {
        "--model": tiny_model, "--ctx": 4096, "--threads": 1, "--port": 0, "--disk-cache": state / "cache",
        "--slot-save-path": state / "slots", "--trace": state / "trace.json", "--log-level": "debug",
    }  # fmt: skip
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-c", "import os; os.umask(0); from luce.supervisor.cli.app import main; main()", "serve",
             *(str(word) for option in options.items() for word in option)],
            stdout=subprocess.PIPE, stderr=log, text=True,
            env={**environment, "XDG_CACHE_HOME": str(state / "xdg")},
        )  # fmt: skip
        assert child.stdout is not None
        try:
            url = next(word for line in child.stdout for word in line.split() if word.startswith("http://"))
            yield Serving(folder, url)
        finally:
            child.terminate()
            child.stdout.close()
            assert child.wait(START_S) == 0


def written(serving: Serving, run: Run, n_least: int) -> dict[str, dict[str, Any]]:
    """What `ls` says, once the pages of a request have come to the disk: they do when nothing else is to be done."""
    end_s = time.monotonic() + START_S
    while True:
        listed = run("luce", "cache", "ls", "--disk-cache", serving.cache, "--json")
        assert listed.returncode == 0, listed.stderr
        groups = {group["name"]: group for group in json.loads(listed.stdout)["groups"]}
        if sum(group["n_pages"] for group in groups.values()) >= n_least and "answers" in groups:
            return groups
        assert time.monotonic() < end_s, listed.stdout


def test_what_a_server_writes_is_for_its_owner_alone_and_its_log_holds_no_prompts(serving: Serving, run: Run) -> None:
    serving.ask()
    saved = httpx.post(f"{serving.url}/slots/0?action=save", json={"filename": "saved"}, timeout=START_S)
    assert saved.status_code == 200, saved.text
    written(serving, run, n_least=2)
    state = serving.folder / "state"
    given = {state, state / "slots"}
    made = [path for path in state.rglob("*") if path not in given]
    assert {"saved", "trace.json"} <= {path.name for path in made}
    open_to_others = [path for path in made if stat.S_IMODE(path.lstat().st_mode) & 0o077]
    assert not open_to_others
    log = (serving.folder / "log").read_text()
    assert "/v1/chat/completions 200" in log
    assert SECRET not in log
    assert "Xanthippe" not in log


def test_what_is_there_and_how_to_be_rid_of_it(serving: Serving, run: Run) -> None:
    strange = serving.cache / "notes.txt"
    serving.ask()
    strange.write_text("mine")
    groups = written(serving, run, n_least=2)
    (model,) = (name for name in groups if name != "answers")
    table = run("luce", "cache", "ls", "--disk-cache", serving.cache).stdout.decode()
    assert model[:12] in table
    assert run("luce", "cache", "rm", "--older-than", "1h", "--disk-cache", serving.cache).returncode == 0
    assert written(serving, run, n_least=2)[model]["n_files"] >= groups[model]["n_files"]
    removed = run("luce", "cache", "rm", model[:4], "--disk-cache", serving.cache)
    assert removed.returncode == 0, removed.stderr
    assert b"are free" in removed.stderr
    serving.ask("something else")  # the server has lost its pages there, and goes on
    asked = run("luce", "cache", "purge", "--disk-cache", serving.cache, input=b"n\n")
    assert asked.returncode == 130
    assert written(serving, run, n_least=0)
    purged = run("luce", "cache", "purge", "--yes", "--disk-cache", serving.cache)
    assert purged.returncode == 0, purged.stderr
    assert strange.read_text() == "mine"
    assert serving.ask()["prompt_tokens"] > 100


def test_what_cannot_be_meant(run: Run, tmp_path: Path) -> None:
    for arguments, code, told in (
        (("ls",), 64, "Missing option '--disk-cache'"),
        (("ls", "--disk-cache", tmp_path / "none"), 1, "No such file or directory"),
        (("rm", "--disk-cache", tmp_path), 64, "--older-than"),
        (("rm", "abc", "--disk-cache", tmp_path), 1, "has nothing of 'abc'"),
        (("rm", "--older-than", "soon", "--disk-cache", tmp_path), 64, "is no age"),
    ):
        ended = run("luce", "cache", *arguments)
        assert (ended.returncode, told in ended.stderr.decode()) == (code, True), ended.stderr


def test_links_are_not_followed(run: Run, tmp_path: Path) -> None:
    """A folder that somebody else has linked into the cache."""
    name = "ab" + "0" * 30
    elsewhere, cache = tmp_path / "elsewhere", tmp_path / "cache"
    (elsewhere / "ab").mkdir(parents=True)
    (elsewhere / "ab" / f"{name}.page").write_bytes(b"page")
    cache.mkdir()
    (cache / ("0" * 32)).symlink_to(elsewhere)
    (cache / ("1" * 32) / "ab").mkdir(parents=True)
    (cache / ("1" * 32) / "ab" / f"{name}.page").symlink_to(elsewhere / "ab" / f"{name}.page")
    assert run("luce", "cache", "purge", "--yes", "--disk-cache", cache).returncode == 0
    assert (elsewhere / "ab" / f"{name}.page").read_bytes() == b"page"
