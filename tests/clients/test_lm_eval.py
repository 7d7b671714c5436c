"""Log-probabilities through the server against llama.cpp's own: llama-perplexity's of running text, and of each answer
that lm-eval asks for (`--full`, from the package index), with nothing told but the server's address.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from luce.supervisor.text import TextModel
from scripts.bench.real.perplexity import Window, run_perplexity
from tests.http.serving import Server

ROOT = Path(__file__).parents[2]
TASK = Path(__file__).with_name("lm_eval_task")
INSTALL_S, RUN_S, BUILD_S = 1800, 1200, 3600
NEAR = 0.01
N_UBATCH = 512
AS_LLAMA_CPP = {"cache_type_k": "f16", "cache_type_v": "f16", "ubatch": N_UBATCH, "threads": 1}
"""With the server's default cache on a CPU, q8_0, an answer's sum is off by 0.1."""
N_WINDOW, N_WINDOWS = 512, 4
N_QUESTIONS, N_CHOICES = 10, 4
FILLER, END = " the", "\n"
"""Tokens of their own in both vocabularies: texts beside them are tokenised as they are alone."""


pytestmark = pytest.mark.full_only  # it builds llama-perplexity and installs lm-eval


@pytest.fixture(scope="module", params=["tiny_model", "smollm"])
def model(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    running = Server(model, AS_LLAMA_CPP)
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture(scope="module")
def llama_perplexity() -> Path:
    """Of the libllama that luced links, from the newest build with llama.cpp's own programs; built if it is not yet."""
    for cache in sorted((ROOT / "build").glob("*/CMakeCache.txt"), key=lambda path: path.stat().st_mtime, reverse=True):
        if "LUCE_BUILD_BENCH:BOOL=ON" in cache.read_text():
            build = [str(Path(sys.executable).with_name("cmake")), "--build", str(cache.parent)]
            subprocess.run([*build, "--target", "llama-perplexity"], timeout=BUILD_S, check=True)
            return cache.parent / "bin" / "llama-perplexity"
    pytest.fail("no build folder with LUCE_BUILD_BENCH=ON under build/: run scripts/test --full, which makes one")


@pytest.fixture(scope="module")
def lm_eval(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that it is installed in."""
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


def llama_cpps(program: Path, model: Path, asked: Sequence[tuple[str, str]], folder: Path) -> list[float]:
    """The log-probability of each answer behind its question. Each text begins a window, whose second half alone has
    log-probabilities: the answer lies there if the question fills the first half."""
    with TextModel(model) as text:
        questions = [len(text.tokenize(question)) for question, _ in asked]
        texts = [text.tokenize(question + answer) for question, answer in asked]
    n_window = max(len(ids) for ids in texts) + len(END)
    n_window += n_window % 2
    assert min(questions) > n_window // 2
    chained = "".join(
        question + answer + FILLER * (n_window - len(END) - len(ids)) + END
        for (question, answer), ids in zip(asked, texts, strict=True)
    )
    (folder / "chained.txt").write_text(chained + FILLER, "utf-8")  # a file's last line end is not read
    options = ("--batch-size", str(n_window), "--threads", "1")
    windows = run_perplexity(program, model, folder / "chained.txt", n_window, *options)
    found = []
    for window, ids, n_question in zip(windows, texts, questions, strict=True):
        assert list(window.tokens[: len(ids)]) == ids
        answer = slice(n_question - window.first, len(ids) - window.first)
        assert not any(window.are_floor[answer])
        found.append(sum(window.logprobs[answer]))
    return found


def echoed(client: OpenAI, ids: Sequence[int]) -> list[float | None]:
    choice = client.completions.create(model="any", prompt=list(ids), echo=True, logprobs=0, max_tokens=0).choices[0]
    assert choice.logprobs is not None
    logprobs: list[float | None] | None = choice.logprobs.token_logprobs
    assert logprobs is not None
    return logprobs


def furthest(window: Window, logprobs: Sequence[float | None]) -> float:
    """How far one of the window's log-probabilities is from ours."""
    assert len(logprobs) == len(window.tokens)
    moves = []
    for ours, theirs, is_floor in zip(logprobs[window.first :], window.logprobs, window.are_floor, strict=True):
        assert ours is not None
        moves.append(max(ours - theirs, 0.0) if is_floor else abs(ours - theirs))
    return max(moves)


def test_a_prompts_logprobs_are_llama_perplexitys(
    llama_perplexity: Path, model: Path, server: Server, llama_templates_dir: Path
) -> None:
    text = llama_templates_dir.parents[1] / "docs" / "speculative.md"
    options = ("--batch-size", str(N_UBATCH), "--chunks", str(N_WINDOWS), "--threads", "1")
    windows = run_perplexity(llama_perplexity, model, text, N_WINDOW, *options)
    assert len(windows) == N_WINDOWS
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        moved = [furthest(window, echoed(client, window.tokens)) for window in windows]
    print(f"{N_WINDOWS * len(windows[0].logprobs)} tokens, furthest {max(moved):.6f}")
    assert max(moved) < NEAR


def test_lm_eval_says_what_llama_perplexity_says(
    lm_eval: Path, llama_perplexity: Path, model: Path, server: Server, tmp_path: Path
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
    expected = llama_cpps(llama_perplexity, model, asked, tmp_path)
    assert told == pytest.approx(expected, abs=NEAR)
    for number, sample in enumerate(samples):
        mine = expected[number * N_CHOICES : (number + 1) * N_CHOICES]
        assert sample["acc"] == float(mine.index(max(mine)) == sample["doc"]["answer"])
