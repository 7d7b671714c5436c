"""`luce ps` and `luce top`: a real server watched, and what is made of its figures."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.cli.watching.conversations import conversations
from luce.supervisor.cli.watching.processes import Runner
from luce.supervisor.cli.watching.speeds import Speeds, speeds
from tests.cli.conftest import TIMEOUT_S, Run
from tests.cli.pseudo_terminal import Terminal, in_terminal
from tests.cli.scripted_server import scripted

READY = re.compile(rb"^luce serve is ready: (\S+) at (\S+)")
KEY = "secret"
WITH_KEY = {**os.environ, "LUCE_API_KEY": KEY}
ENGINE: dict[str, Any] = {
    "name": "engine 0",
    "state": "ready",
    "load_percent": None,
    "deaths": 0,
    "last_failure": None,
    "lanes": 2,
    "running": [],
    "slots": 0,
    "slots_used": 0,
    "ctx": 1024,
    "speculation": "none",
    "figures": {},
    "tiers": [],
}
REQUESTS = {"total": 0, "finished": 0, "failed": 0, "cancelled": 0, "resumed": 0}
STATUS: dict[str, Any] = {
    "time_s": 1.0,
    "model": "scripted",
    "waiting": 0,
    "tokens": 0,
    "requests": REQUESTS,
    "engines": [ENGINE],
}


@pytest.fixture(scope="module")
def server(bin_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`luce serve` with a key; its address."""
    command = [str(bin_dir / "luce"), "serve", "--port", "0", "--threads", "1", "--no-warmup"]
    command += ["--ctx", "4096", "--lanes", "2"]
    log = tmp_path_factory.mktemp("server") / "stderr"
    with (
        log.open("wb") as stderr,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, env=WITH_KEY) as it,
    ):
        assert it.stdout is not None
        ready = next((found for line in it.stdout if (found := READY.search(line))), None)
        assert ready is not None, log.read_text()
        try:
            yield it, ready[2].decode()
        finally:
            it.send_signal(signal.SIGINT)
            it.wait(TIMEOUT_S)


@contextmanager
def answering(url: str) -> Iterator[None]:
    """A request that is being answered for as long as the block lasts."""
    body = {"prompt": "Once", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    asked = urllib.request.Request(  # noqa: S310
        f"{url}/v1/completions", data=json.dumps(body).encode(), headers={"Authorization": f"Bearer {KEY}"}
    )
    with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as answer:  # noqa: S310
        assert answer.readline().startswith(b"data:")
        yield


@contextmanager
def top(bin_dir: Path, url: str, *arguments: str) -> Iterator[Terminal]:
    with in_terminal([str(bin_dir / "luce"), "top", "--url", url, *arguments], {"LUCE_API_KEY": KEY}) as it:
        yield it


def test_ps_shows_a_server_above_its_engine(run: Run, server: tuple[subprocess.Popen[bytes], str]) -> None:
    popen, url = server
    with answering(url):
        listed = json.loads(run("luce", "ps", "--json", env=WITH_KEY).stdout)
    found = next(runner for runner in listed if runner["pid"] == popen.pid)
    assert (found["program"], found["urls"], found["model"]) == ("luce serve", [url], "luce-tiny-Q8_0")
    assert (found["state"], found["lanes"], found["lanes_busy"], found["said"]) == ("ready", 2, 1, None)
    assert found["uptime_s"] > 0
    assert found["memory_bytes"] > 1 << 20
    [engine] = found["engines"]
    assert engine["model"] == "luce-tiny-Q8_0"
    assert engine["memory_bytes"] > 1 << 20


def test_ps_in_a_table_and_without_a_key(run: Run, server: tuple[subprocess.Popen[bytes], str]) -> None:
    popen, url = server
    environment = {**os.environ, "COLUMNS": "160"}
    shown = run("luce", "ps", env=environment).stdout.decode()
    assert re.search(rf"luce serve +{popen.pid} +luce-tiny-Q8_0 +{re.escape(url)} ", shown)
    assert "└ luced" in shown
    assert f"{popen.pid}: the server refuses (401): give the server's key in LUCE_API_KEY" in " ".join(shown.split())


def test_a_server_elsewhere_is_named_where_none_answers(run: Run, server: tuple[subprocess.Popen[bytes], str]) -> None:
    for command in ("top", "chat"):
        result = run("luce", command, "--url", "http://127.0.0.1:9", input=b"")
        assert result.returncode == 1
        assert "Running here: " in result.stderr.decode()
        assert server[1] in result.stderr.decode()


def test_top_shows_lanes_and_memory_until_q(bin_dir: Path, server: tuple[subprocess.Popen[bytes], str]) -> None:
    with answering(server[1]), top(bin_dir, server[1], "--interval", "0.2") as it:
        it.wait_for(b"luce-tiny-Q8_0")
        it.wait_for(b"writes")
        it.wait_for(b"of running texts")
        it.type("q")
        assert it.wait_for_end() == 0
        assert it.is_as_before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_a_signal_ends_top_and_leaves_the_terminal_as_it_was(bin_dir: Path, number: int, code: int) -> None:
    with scripted(status=json.dumps(STATUS)) as server, top(bin_dir, server.url) as it:
        it.wait_for(b"2 of 2 lanes free")
        it.popen.send_signal(number)
        it.wait_for(b"\x1b[?1049l")  # the screen from before
        assert it.wait_for_end() == code
        assert it.is_as_before


def test_top_goes_on_where_the_server_is_gone_and_comes_back(bin_dir: Path) -> None:
    with scripted(status=json.dumps(STATUS)) as server, top(bin_dir, server.url, "--interval", "0.1") as it:
        it.wait_for(b"2 of 2 lanes free")
        it.wait_for(b"conversations are not shown: the server refuses (404)")
        server.pages["/status.json"] = None
        it.wait_for(b"no newer figures: the server refuses (404)")
        server.pages["/status.json"] = json.dumps({**STATUS, "model": "another"})
        it.wait_for(b"another")


def test_top_without_a_terminal_is_one_picture(run: Run, server: tuple[subprocess.Popen[bytes], str]) -> None:
    body = {"messages": [{"role": "user", "content": "Remember the roofs of the old town. " * 20}], "max_tokens": 4}
    asked = urllib.request.Request(  # noqa: S310
        f"{server[1]}/v1/chat/completions", data=json.dumps(body).encode(), headers={"Authorization": f"Bearer {KEY}"}
    )
    with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as answer:  # noqa: S310
        assert answer.status == 200
    result = run("luce", "top", "--url", server[1], "--interval", "0.05", "--name", "any", env=WITH_KEY)
    assert result.returncode == 0, result.stderr
    for shown in (b"luce-tiny-Q8_0 at http", b" tokens a second", b"2 of 2 lanes free", b"device", b"host", b"disk"):
        assert shown in result.stdout
    assert re.search(rb"s ago +\d+ +0 +\d+ m?s .*(device|host) \d.* user Remember", result.stdout)


@pytest.mark.parametrize(("status", "said"), [(None, "(404)"), ("[]", "no JSON object"), ("{}", "no server of")])
def test_top_is_for_our_servers(run: Run, status: str | None, said: str) -> None:
    with scripted(status=status) as server:
        result = run("luce", "top", "--url", server.url)
    assert result.returncode == 1
    assert said in result.stderr.decode()


# Without a process


def look(time_s: float, tokens: int, lanes: list[tuple[int, int, int]], **figures: int) -> dict[str, Any]:
    running = [dict(zip(("n_prompt", "n_read", "n_generated"), lane, strict=True)) for lane in lanes]
    return {"time_s": time_s, "tokens": tokens, "engines": [{"running": running, "figures": figures}]}


def test_speeds_between_two_looks() -> None:
    before = look(1.0, 100, [(50, 50, 10), (900, 100, 0)], tokens_in=150, tokens_reused=0)
    now = look(3.0, 140, [(50, 50, 30), (900, 500, 0), (7, 0, 0)], tokens_in=550, tokens_reused=1200)
    assert speeds(now, before) == Speeds(20.0, 200.0, 0.75, ((10.0, 200.0, None),))


def test_what_cannot_be_told_is_not_said() -> None:
    now = look(2.0, 10, [(5, 5, 9)], tokens_in=10, tokens_reused=0)
    assert speeds(now, None) == Speeds()
    assert speeds(now, now) == Speeds(), "the same look"
    assert speeds(now, look(1.0, 99, [])) == Speeds(), "a server that was started anew"
    assert speeds(now, look(1.0, 0, [(6, 5, 1)])) == Speeds(10.0, None, None, ((None,),)), "another text; a busy engine"
    restarted = look(1.0, 0, [(5, 5, 9)], tokens_in=11, tokens_reused=0)
    assert speeds(now, restarted) == Speeds(10.0, None, None, ((0.0,),)), "an engine that was started anew"


def run_of(page: str, parent: str | None, begin: int, end: int, **places: int) -> dict[str, Any]:
    counts = {"n_device": 0, "n_host": 0, "n_disk": 0, "n_lanes": 0, **places}
    return {"page": page, "parent": parent, "begin": begin, "end": end, "is_held": False, "words": page, **counts}


def test_a_conversation_is_a_way_to_an_end_of_the_tree() -> None:
    runs = [
        run_of("a", None, 0, 192, n_device=3, n_host=3, n_disk=3, age_s=9),
        run_of("b", "a", 192, 256, n_disk=1, age_s=9),
        run_of("c", "a", 192, 320, n_host=1, n_disk=2, age_s=4),
        run_of("d", "gone", 64, 128, n_device=1) | {"age_s": None},
    ]
    memory = {"engines": [{"page_tokens": 64, "runs": runs}], "read_s": 0.01}
    found = conversations(memory)
    assert [(one.words, one.n_tokens, one.n_shared, one.n_pages) for one in found] == [
        ("c", 320, 192, (3, 1, 1)),
        ("b", 256, 192, (3, 0, 1)),
        ("d", 128, 64, (1, 0, 0)),
    ]
    assert [one.read_s for one in found] == [3.2, 2.56, 1.28]


@pytest.mark.parametrize(
    ("command", "title"),
    [
        ("/v/bin/python /v/bin/luce serve --model m.gguf", "luce serve"),
        ("/v/bin/luce serve", "luce serve"),
        ("/v/bin/python /v/bin/luce eval --threads 2", "luce eval"),
        ("/v/bin/python -c …luce… 77 serve --port 1", "luce serve, private"),
        ("/usr/bin/python3 train.py serve", "python3"),
        ("", "?"),
    ],
)
def test_what_runs_an_engine_is_named(command: str, title: str) -> None:
    runner = Runner(
        pid=1, command=tuple(command.split()), uptime_s=0, memory_bytes=0, is_ours=True, urls=(), engines=()
    )
    assert runner.title == title
    assert runner.is_server == title.startswith("luce serve")


def test_an_option_of_a_command_line() -> None:
    runner = Runner(
        pid=1, command=("luced", "--model", "m", "--lanes=2", "--x"), uptime_s=0, memory_bytes=0, is_ours=True, urls=(),
        engines=(),
    )  # fmt: skip
    assert [runner.option(name) for name in ("--model", "--lanes", "--x", "--y")] == ["m", "2", "", None]
