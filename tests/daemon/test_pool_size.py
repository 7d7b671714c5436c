"""The pool that `--kv-offload auto` chooses: it starts on every kind of model, tells its sum, keeps to the limit that
it names, and serves texts that are longer; where nothing fits it says what is missing."""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

import pytest

from tests.daemon.conftest import Start
from tests.daemon.exactness import done, generate
from tests.daemon.test_residency import FAMILIES, model_of
from tests.daemon_driver import random_prompt

N_PROMPT = 1500


def run(luced: Path, model: Path, *arguments: str, commands: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [luced, "--model", model, "--threads", "1", "--no-warmup", "--ubatch", "64", "--kv-offload", "auto",
         *arguments],
        input=commands, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def ready_number(stdout: str, key: str) -> int:
    found = re.search(rf" {key}=(\d+)", stdout)
    assert found is not None, stdout
    return int(found[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_of_model_is_given_a_pool_and_serves_a_longer_text(
    luced: Path, family: str, tiny_model: Path, test_models: Path, tmp_path: Path
) -> None:
    given, answer = tmp_path / "prompt", tmp_path / "answer"
    given.write_bytes(struct.pack(f"<{N_PROMPT + 1}I", N_PROMPT, *random_prompt(N_PROMPT, seed=3)))
    model = model_of(family, tiny_model, test_models)
    ended = run(luced, model, "--lanes", "1", commands=f"generate {given} 8 {answer}\n")
    assert ended.returncode == 0, ended.stderr
    told = re.search(r"--kv-offload auto: a pool of (\d+) tokens; what decided: (.*)\n", ended.stderr)
    assert told is not None, ended.stderr
    assert int(told[1]) == ready_number(ended.stdout, "kvflash") == ready_number(ended.stdout, "pool")
    for column in ("weights", "drafts", "compute", "free", "reserve", "KV a token", "host"):
        assert column in ended.stderr
    n_allowed = {
        name: int(re.search(rf"{name} (\d+)", ended.stderr)[1])  # type: ignore[index]
        for name in ("memory allows", "speed", "texts can use", "at least")
    }
    n_least = n_allowed.pop("at least")
    assert n_least == 512
    assert int(told[1]) == max(n_least, min(n_allowed.values()) // 256 * 256)
    assert f"ok N={N_PROMPT}" in ended.stdout
    assert struct.unpack_from("<I", answer.read_bytes()) == (8,)


def test_it_is_no_larger_than_texts_can_use(luced: Path, tiny_model: Path) -> None:
    ended = run(luced, tiny_model, "--lanes", "2", "--ctx", "1000")
    assert ready_number(ended.stdout, "pool") == 2 * 1024
    assert "what decided: what texts can use" in ended.stderr


def test_a_draft_is_counted(luced: Path, tiny_model: Path, packaged_draft: Path) -> None:
    arguments = ("--lanes", "1", "--ctx", "1000")
    alone, beside = (run(luced, tiny_model, *arguments, *more) for more in ((), ("--draft", str(packaged_draft))))
    a_token = [
        sum(int(n_bytes) for n_bytes in re.findall(r"(?:host|CUDA0) .* (\d+)\n", ended.stderr))
        for ended in (alone, beside)
    ]
    assert a_token[1] > a_token[0] > 0
    assert beside.returncode == 0
    assert ready_number(beside.stdout, "pool") == 1024


def test_park_takes_the_same_pool_again(start: Start) -> None:
    daemon = start("--kv-offload", "auto", "--lanes", "1", "--ubatch", "64")
    prompt = random_prompt(700, seed=2)
    first = generate(daemon, prompt)
    done(daemon, "park")
    done(daemon, "unpark")
    again = generate(daemon, prompt)
    assert (again.ok.n_reused, again.tokens) == (700, first.tokens)


def test_where_even_the_smallest_pool_does_not_fit_the_figures_are_told(
    luced: Path, tiny_model: Path, gpu: bool
) -> None:
    if gpu:
        pytest.skip("the pool lies on the GPU: what the host has to spare does not decide")
    ended = run(luced, tiny_model, "--lanes", "1", "--host-cache", "1000T")
    assert ended.returncode == 2
    assert "--kv-offload auto: even the smallest pool of 512 tokens leaves host too little memory" in ended.stdout
    assert re.search(r"\d+ MiB are to stay free and \d+ MiB are( \(.*\))?; \d+ MiB are missing", ended.stdout)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--pool", "1024"), "give one of them"),
        (("--flash-attn", "off"), "needs flash attention"),
        (("--kv-offload", "Auto"), "--kv-offload takes a whole number of tokens, at most 268435456, or auto"),
        (("--kv-offload", ""), "or auto"),
        (("--host-cache", "1M", "--ctx", "8192"), "give --host-cache as much, or a smaller --ctx"),
    ],
)
def test_what_cannot_go_with_it_is_refused(
    luced: Path, tiny_model: Path, arguments: tuple[str, ...], says: str
) -> None:
    ended = run(luced, tiny_model, *arguments)
    assert ended.returncode == 64, ended
    assert says in ended.stdout


def test_to_size_a_pool_a_drafter_is_loaded_once(luced: Path, tiny_model: Path, packaged_draft: Path) -> None:
    """It has to be there to know what it takes; its cells come anew, as many as the pool's."""
    drafting = ("--draft", str(packaged_draft), "--log-level", "debug", "--lanes", "1", "--ctx", "4096")
    ended = run(luced, tiny_model, *drafting)
    assert ended.returncode == 0, ended.stderr
    loaded = [line for line in ended.stderr.splitlines() if "loaded meta data" in line]
    assert [packaged_draft.name in line for line in loaded].count(True) == 1
    assert "spec=ngram+dflash" in ended.stdout
