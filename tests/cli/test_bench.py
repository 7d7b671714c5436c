"""`luce bench`: with an engine of its own, with servers that run, and with servers that have less than ours."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.cli.bench.measure import DepthSample, Sample, Side, in_turns
from luce.supervisor.cli.bench.report import depth_rows, ratio_rows
from luce.supervisor.cli.server_client import ServerClient
from tests.cli.conftest import Run
from tests.cli.scripted_server import end, scripted, text
from tests.http.serving import Server

SHORT = ["--rounds", "1", "-n", "6"]


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Server]:
    running = Server(tiny_model, {"api_keys": ("secret",), "ctx": 1024, "pool": 2048, "lanes": 2})
    try:
        yield running.start()
    finally:
        running.stop()


def bench(run: Run, *arguments: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    return run("luce", "bench", *arguments, env={**os.environ, "LUCE_API_KEY": "secret", **variables})


def usage(n_prompt: int, n_answer: int) -> list[Any]:
    return [text("one"), text(" two"), *end("length", prompt_tokens=n_prompt, completion_tokens=n_answer)]


def test_an_engine_of_its_own_is_measured_with_drafts_and_without(run: Run, tmp_path: Path) -> None:
    trace = tmp_path / "steps.json"
    result = bench(run, "--threads", "1", "--trace", str(trace), "--depths", "64,300", "--json", *SHORT)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert [row["depth"] for row in found["depths"]] == [64, 300]
    assert all(abs(row["n_prompt"] - row["depth"]) < 0.2 * row["depth"] for row in found["depths"])
    assert all(row["decoded_per_s"] > 0 and row["cached_share"] > 0.5 for row in found["depths"])
    assert all(sample["cold"]["n_answer"] == 6 for sample in found["samples"]["depths"])
    assert {row["prompt"] for row in found["speculation"]} == {"copy", "code", "prose"}
    assert all(row["is_same_text"] for row in found["speculation"])
    assert found["settings"]["engine"] == ["--threads", "1", "--trace", str(trace)]
    for written in (trace, tmp_path / "steps.json.plain"):
        assert any(event["name"] == "step" for event in json.loads(written.read_text()))
    assert b"64 tokens, 1 of 1" in result.stderr


def test_two_servers_are_compared(run: Run, server: Server) -> None:
    url = server.url
    other = url.replace("127.0.0.1", "localhost")
    result = bench(run, "--url", url, "--vs", other, "--depths", "100", *SHORT, LUCE_VS_API_KEY="secret")
    assert result.returncode == 0, result.stderr
    shown = result.stdout.decode()
    for said in ("cold", "read/s", "warm", "decoded/s", "url against vs: times faster"):
        assert said in " ".join(shown.split())


def test_the_key_has_to_be_right(run: Run, server: Server) -> None:
    result = bench(run, "--url", server.url, *SHORT, LUCE_API_KEY="wrong")
    assert (result.returncode, result.stdout) == (1, b"")
    assert b"LUCE_API_KEY" in result.stderr


def test_a_depth_without_room_is_left_out(run: Run, server: Server) -> None:
    result = bench(run, "--url", server.url, "--depths", "100,4K", "--json", "--api", "completions", *SHORT)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert [row["depth"] for row in found["depths"]] == [100]
    assert "depth 4,096 is left out" in found["notes"][0]
    nothing = bench(run, "--url", server.url, "--depths", "4K", *SHORT)
    assert nothing.returncode == 1
    assert b"nothing could be measured" in nothing.stderr


def test_a_server_that_refuses_what_it_does_not_know_is_asked_without_it() -> None:
    with scripted((400, '{"error": "ignore_eos?"}'), usage(80, 2), usage(208, 2), usage(64, 5)) as server:
        side = Side("it", ServerClient(server.url, None))
        assert side.words_for(64) == 48
        sample, answer = side.ask(["Hi", "Yes?", "Go on."], 5)
    assert (sample.n_prompt, sample.n_cached, sample.n_answer, answer) == (64, 4, 5, "one two")
    assert ["ignore_eos" in body for body in server.asked] == [True, False, False, False]
    assert [message["role"] for message in server.asked[-1]["messages"]] == ["user", "assistant", "user"]


def test_a_server_that_counts_no_tokens_is_of_no_use(run: Run) -> None:
    with scripted([text("Hi"), {"index": 0, "delta": {}, "finish_reason": "stop"}, "[DONE]"]) as server:
        result = bench(run, "--url", server.url, *SHORT)
    assert result.returncode == 1
    assert b"stream_options" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--depths", "64,x"], b"'x' is not a number of tokens"),
        (["--depths", "0"], b"0 is not in the range"),
        (["--url", "http://x", "--ctx", "5"], b"--ctx is for an engine of its own"),
        (["--url", "ftp://x"], b"is no address of a server"),
    ],
)
def test_what_cannot_be_asked(run: Run, arguments: list[str], said: bytes) -> None:
    result = bench(run, *arguments)
    assert result.returncode == 64
    assert said in b" ".join(result.stderr.split())


def test_an_engine_that_does_not_start_says_why_once(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    result = bench(run, "--model", str(tmp_path / "bad.gguf"), *SHORT)
    assert result.returncode == 2
    assert result.stderr.count(b"Error:") == 1


def test_a_plot_without_matplotlib_is_refused_before_anything_is_measured(run: Run, tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError")
    result = bench(run, "--plot", "x.png", PYTHONPATH=str(tmp_path))
    assert result.returncode == 64
    assert b"luce-daemon[bench]" in result.stderr


def test_a_plot_is_drawn(run: Run, server: Server, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="left out: needs matplotlib, which the extra bench installs")
    result = bench(run, "--url", server.url, "--depths", "64", "--plot", str(tmp_path / "it.png"), *SHORT)
    assert result.returncode == 0, result.stderr
    assert b"Warning" not in result.stderr
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")


# Without a server


def sample(first_token_s: float, n_answer: int = 11, decode_s: float = 1.0) -> Sample:
    return Sample(100, 0, n_answer, first_token_s, decode_s)


def test_ratios_are_of_pairs_and_say_how_much_better_the_first_one_is() -> None:
    samples = [
        DepthSample(side, 64, turn, sample(first_s), sample(first_s / 2, decode_s=decode_s))
        for turn, (ours_s, theirs_s) in enumerate([(1.0, 2.0), (10.0, 30.0), (1.0, 1.0)])
        for side, first_s, decode_s in (("a", ours_s, 1.0), ("b", theirs_s, 1.0))
    ]
    (row,) = ratio_rows(samples, "a", "b")
    assert row.cold_first_token == row.warm_first_token == (2.0, 1.0, 3.0)
    assert row.decoding == (1.0, 1.0, 1.0)
    assert ratio_rows(samples[:1], "a", "b") == []


def test_medians_of_answers_without_a_second_token() -> None:
    (row,) = depth_rows([DepthSample("a", 64, 0, sample(0.5, n_answer=1), sample(0.1, n_answer=1))])
    assert (row.read_per_s, row.decoded_per_s, row.cached_share) == (200.0, None, 0.0)


def test_another_side_begins_each_time() -> None:
    sides = [Side(name, ServerClient("http://x", None)) for name in "abc"]
    assert [[side.name for side in in_turns(sides, turn)] for turn in range(4)] == [
        ["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"],
    ]  # fmt: skip
