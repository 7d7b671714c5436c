"""`luce serve --models` and `luce models`: a real server with two models, and what is found on this machine."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

from tests.cli.conftest import TIMEOUT_S, Run
from tests.kv_events.subscriber import replayed

READY = re.compile(rb"luce serve is ready: (\S+) at (\S+)")


def test_a_server_with_two_models(
    bin_dir: Path, tiny_model: Path, tmp_path: Path, short_folder: Path, run: Run
) -> None:
    file = tmp_path / "models.toml"
    file.write_text(f'[models.one]\nmodel = "{tiny_model}"\nctx = 2048\n[models.two]\nmodel = "{tiny_model}"\n')
    command = [str(bin_dir / "luce"), "serve", "--models", str(file), "--port", "0", "--threads", "1", "--no-warmup"]
    replay = f"ipc://{short_folder}/replay"
    command += ["--kv-events", f"ipc://{short_folder}/events", "--kv-events-replay", replay]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            ready = next(found for line in server.stdout if (found := READY.search(line)))
            listed = json.loads(run("luce", "models", "--url", ready[2].decode(), "--json").stdout)
            assert listed == [
                {"model": "one", "state": "away", "window": 2048},
                {"model": "two", "state": "away", "window": None},
            ]
            table = run("luce", "models", "--url", ready[2].decode()).stdout.decode()
            assert re.search(r"one +away +2,048", table)
            asked = json.dumps({"model": "two", "prompt": list(range(2, 202)), "max_tokens": 1}).encode()
            urllib.request.urlopen(f"{ready[2].decode()}/v1/completions", asked, TIMEOUT_S).close()  # noqa: S310
            assert "BlockStored" in [event[0] for event in replayed(f"{replay}.1")]
            assert [event[0] for event in replayed(replay)] == ["AllBlocksCleared"], "each model has its own"
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(TIMEOUT_S) == 0


def test_what_lies_on_this_machine(tiny_model: Path, run: Run) -> None:
    listed = json.loads(run("luce", "models", "--from", str(tiny_model.parent), "--json").stdout)
    assert [model["model"] for model in listed] == [tiny_model.stem], "its drafter is no model"


def test_mistakes_are_told_before_anything_is_loaded(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "models.toml"
    file.write_text('[models.one]\nmodel = "missing.gguf"\n')
    ended = run("luce", "serve", "--models", str(file))
    assert ended.returncode == 2
    assert b"models.one: model" in ended.stderr
    ended = run("luce", "serve", "--models", str(file), "--model", "other.gguf")
    assert ended.returncode == 64
    assert b"--model excludes --models" in ended.stderr
    events = ["--kv-events", "tcp://127.0.0.1:0", "--kv-events-topic", "kv@pod@m"]
    ended = run("luce", "serve", "--models", str(file), *events)
    assert (ended.returncode, b"must contain {model}" in ended.stderr) == (64, True)
