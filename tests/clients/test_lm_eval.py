"""lm-eval against `luce serve` (`--full`, from the package index): its `local-completions` model on ten questions of
our own, with nothing told but the server's address. The log-probabilities are libllama's own, and so are the scores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.text import TextModel
from tests.http.serving import Server

ROOT = Path(__file__).parents[2]
TASK = Path(__file__).with_name("lm_eval_task")
INSTALL_S, RUN_S = 900, 600
NEAR = 0.01
F16 = {"cache_type_k": "f16", "cache_type_v": "f16"}
"""libllama's number format of the attention cache: with the server's default, q8_0, an answer's sum is off by 0.1."""
N_QUESTIONS, N_CHOICES = 10, 4


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Server]:
    running = Server(tiny_model, F16)
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture(scope="module")
def plain_logprobs() -> Path:
    built = list((ROOT / "build").glob("*/native/tests/plain_logprobs"))
    if not built:
        pytest.skip("plain_logprobs is not built (LUCE_BUILD_TESTS=ON)")
    return built[0]


@pytest.fixture(scope="module")
def lm_eval(full: bool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that it is installed in."""
    if not full:
        pytest.skip("left out: it installs lm-eval; --full does so")
    folder = tmp_path_factory.mktemp("lm_eval")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(folder)]
    subprocess.run([*pip, "lm_eval[api]>=0.4.9"], timeout=INSTALL_S, check=True)
    return folder


def run(lm_eval: Path, url: str, folder: Path) -> list[dict[str, Any]]:
    """What it says of each question."""
    model = f"base_url={url}/v1/completions,model=any,num_concurrent=2,max_retries=1"
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", model),
            *("--include_path", str(TASK), "--tasks", "luce_questions", "--batch_size", "4"),
            *("--log_samples", "--output_path", str(folder / "results")),
        ],
        env={**os.environ, "PYTHONPATH": str(lm_eval), "HF_HOME": str(folder), "HF_HUB_OFFLINE": "1"},
        cwd=TASK,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    [samples] = (folder / "results").rglob("samples_*.jsonl")
    return [json.loads(line) for line in samples.read_text("utf-8").splitlines()]


def libllamas(program: Path, model: Path, asked: list[tuple[str, str]]) -> list[float]:
    """The log-probability of each answer behind its question."""
    with TextModel(model) as text:
        texts = [(len(text.tokenize(question)), text.tokenize(question + answer)) for question, answer in asked]
    lines = "".join(" ".join(map(str, ids)) + "\n" for _, ids in texts)
    told = subprocess.run([program, model], input=lines, capture_output=True, text=True, timeout=RUN_S, check=True)
    rows = [[float(word) for word in line.split()] for line in told.stdout.splitlines()]
    return [sum(row[n_question - 1 :]) for (n_question, _), row in zip(texts, rows, strict=True)]


def test_lm_eval_says_what_libllama_says(
    lm_eval: Path, server: Server, plain_logprobs: Path, tiny_model: Path, tmp_path: Path
) -> None:
    samples = run(lm_eval, server.url, tmp_path)
    assert len(samples) == N_QUESTIONS
    asked: list[tuple[str, str]] = []
    told: list[float] = []
    for sample in samples:
        arguments = [list(given.values()) for given in sample["arguments"].values()]
        assert len(arguments) == N_CHOICES
        asked += [(question, answer) for question, answer in arguments]
        told += [float(answer[0][0]) for answer in sample["resps"]]
    expected = libllamas(plain_logprobs, tiny_model, asked)
    assert told == pytest.approx(expected, abs=NEAR)
    for number, sample in enumerate(samples):
        mine = expected[number * N_CHOICES : (number + 1) * N_CHOICES]
        assert sample["acc"] == float(mine.index(max(mine)) == sample["doc"]["answer"])
