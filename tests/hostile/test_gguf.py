"""Broken and malicious models and drafts: the daemon says what is wrong, or runs; it never crashes or falls silent."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from mutate_gguf import Model, mutate, read_model

FAMILIES = ("qwen3", "qwen3moe", "qwen35", "qwen35moe", "gemma4", "gemma4moe", "laguna", "no_vocab")
DRAFTS = {"dflash-qwen3": "qwen3", "dflash-laguna": "laguna", "eagle3-qwen3": "qwen3", "simple-qwen3": "qwen3",
          "mtp-qwen35": "qwen35", "assistant-gemma4": "gemma4"}  # and their targets  # fmt: skip
N_SHORT, N_FULL = 25, 10_000
WHOLE_VOCABULARY = 1 << 20  # a draft's has to be the target's
LOAD_TIMEOUT_S = 10  # the daemon's own limit for a load that makes no progress
DEADLINE_S = 60.0  # by then it must have ended, on a busy machine too
SHOWN = 20


@dataclass(frozen=True)
class Outcome:
    seed: int
    what: str  # what was done to the file
    verdict: str  # "ready", "refused", or what is wrong


def judge(run: subprocess.CompletedProcess[bytes]) -> str:
    lines = run.stdout.decode(errors="replace").splitlines()
    if run.returncode == 0 and lines and lines[0].startswith("[daemon] ready"):
        return "ready"
    if run.returncode == 2 and len(lines) == 1 and lines[0].startswith("err start_failed ") and len(lines[0]) > 20:
        return "refused"
    return f"exit {run.returncode}, stdout {lines[:3]}, stderr ends {run.stderr[-300:]!r}"


def start(luced: Path, model: Path, draft: Path | None = None) -> str:
    """Start the daemon on a model, with nothing on stdin: it loads, says so, and leaves."""
    command = [
        str(luced),
        "--model",
        str(model),
        "--ctx",
        "256",
        "--threads",
        "1",
        "--load-timeout",
        str(LOAD_TIMEOUT_S),
        *(() if draft is None else ("--draft", str(draft))),
    ]
    try:
        run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE_S, check=False)
        return judge(run)
    except subprocess.TimeoutExpired:
        return f"still running after {DEADLINE_S:.0f} s"


def run_mutant(luced: Path, folder: Path, model: Model, seed: int, target: Path | None = None) -> Outcome:
    data, what = mutate(model, seed)
    path = folder / f"{seed}.gguf"
    path.write_bytes(data)
    try:
        return Outcome(seed, what, start(luced, path) if target is None else start(luced, target, path))
    finally:
        path.unlink()


@pytest.fixture(scope="module")
def small_models(test_models: Path) -> list[Model]:
    return [read_model(test_models / f"{name}.gguf") for name in FAMILIES]


def run_all(luced: Path, folder: Path, models: list[Model], n: int) -> Iterator[Outcome]:
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        yield from pool.map(lambda seed: run_mutant(luced, folder, models[seed % len(models)], seed), range(n))


def test_mutated_models_are_refused_or_run(luced: Path, small_models: list[Model], tmp_path: Path, full: bool) -> None:
    check(list(run_all(luced, tmp_path, small_models, N_FULL if full else N_SHORT)))


def test_mutated_drafts_are_refused_or_run(luced: Path, test_models: Path, tmp_path: Path, full: bool) -> None:
    """A ready daemon has drafted with them: it measures what that takes before it says so."""
    drafts = [(read_model(test_models / "drafts" / f"{name}.gguf", WHOLE_VOCABULARY), test_models / f"{target}.gguf")
              for name, target in DRAFTS.items()]  # fmt: skip

    def run(seed: int) -> Outcome:
        draft, target = drafts[seed % len(drafts)]
        return run_mutant(luced, tmp_path, draft, seed, target)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        check(list(pool.map(run, range(N_FULL if full else N_SHORT))))


def check(outcomes: list[Outcome]) -> None:
    counts = Counter(o.verdict if o.verdict in ("ready", "refused") else "wrong" for o in outcomes)
    print(f"{len(outcomes)} mutants: {dict(counts)}")
    wrong = [f"seed {o.seed} ({o.what}): {o.verdict}" for o in outcomes if o.verdict not in ("ready", "refused")]
    assert not wrong, "\n".join(wrong[:SHOWN])
    assert min(counts["ready"], counts["refused"]) > 0, "mutants of one kind only: the mutations test nothing"


def test_originals_run(luced: Path, test_models: Path) -> None:
    assert {name: start(luced, test_models / f"{name}.gguf") for name in FAMILIES} == dict.fromkeys(FAMILIES, "ready")
    begun = {name: start(luced, test_models / f"{target}.gguf", test_models / "drafts" / f"{name}.gguf")
             for name, target in DRAFTS.items()}  # fmt: skip
    assert begun == dict.fromkeys(DRAFTS, "ready")


@pytest.mark.parametrize("name", ["missing", "directory", "empty", "fifo", "text"])
def test_what_is_no_model_is_refused(luced: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "directory":
        path.mkdir()
    elif name == "fifo":
        os.mkfifo(path)
    elif name != "missing":
        path.write_bytes(b"" if name == "empty" else b"this is no model\n" * 1000)
    assert start(luced, path) == "refused"
