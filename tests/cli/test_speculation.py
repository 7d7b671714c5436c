"""How the commands come by a drafter, and what they say of it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Run

COPY = "Repeat this code exactly:\n```python\ndef area(width, height):\n    return width * height\n```"
PROMPT_BYTES = b"".join(number.to_bytes(4, "little") for number in (329, 285, 1420))


def spec_of(said: bytes) -> str:
    """The ready line's word."""
    found = re.search(rb"^\[daemon\] ready .* spec=(\S+)", said)
    assert found is not None, said
    return found[1].decode()


@pytest.mark.parametrize(
    ("arguments", "spec"),
    [
        ([], "ngram+dflash"),
        (["--draft", "none"], "ngram"),
        (["--draft-ngram", "off"], "dflash"),
        (["--draft", "none", "--draft-ngram", "off"], "none"),
        (["--draft-max", "0"], "none"),
        (["--model", "MODEL"], "ngram"),
        (["--model", "MODEL", "--draft", "DRAFT"], "ngram+dflash"),
    ],
)
def test_the_packaged_model_comes_with_its_drafter(run: Run, tiny_model: Path, arguments: list[str], spec: str) -> None:
    paths = {"MODEL": str(tiny_model), "DRAFT": str(tiny_model.with_name("luce-tiny-dflash-Q8_0.gguf"))}
    result = run("luce-daemon", *(paths.get(word, word) for word in arguments), input=b"quit\n")
    assert result.returncode == 0, result.stderr
    assert spec_of(result.stdout) == spec


def test_a_pipe_says_what_was_drafted(run: Run) -> None:
    result = run("luce-daemon", "--pipe", "--draft-adaptive", "off", "-n", "24", "--ignore-eos", input=PROMPT_BYTES)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout) == 24 * 4
    figures = rb"^ok .* drafted=(\d+) accepted=(\d+) steps=(\d+) spec_steps=(\d+) draft_s=\S+ verify_s=\S+ stop=limit$"
    found = re.search(figures, result.stderr, re.MULTILINE)
    assert found is not None, result.stderr
    drafted, accepted, steps, speculated = map(int, found.groups())
    assert 0 <= accepted <= drafted
    assert 0 < speculated <= steps <= 24
    plain = run("luce-daemon", "--pipe", "--draft-max", "0", "-n", "24", "--ignore-eos", input=PROMPT_BYTES)
    assert plain.returncode == 0, plain.stderr
    assert b"drafted=" not in plain.stderr
    assert plain.stdout == result.stdout


def test_run_reports_it(run: Run) -> None:
    result = run("luce", "run", COPY, "--chat", "--json", "--draft-adaptive", "off", "-n", "64")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    told = report["speculation"]
    assert 0 < told["accepted"] <= told["drafted"]
    assert told["tokens_per_step"] == round(1 + told["accepted"] / told["steps"], 4) > 1
    plain = json.loads(run("luce", "run", COPY, "--chat", "--json", "--draft-max", "0", "-n", "64").stdout)
    assert plain["speculation"] is None
    assert (plain["text"], plain["ids"]) == (report["text"], report["ids"])


def test_a_checkpoint_is_converted_once(run: Run, data_models: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    for is_first in (True, False):
        result = run("luce-daemon", "--draft", data_models / "luce-tiny-dflash-hf", input=b"quit\n", env=environment)
        assert result.returncode == 0, result.stderr
        assert (b"converting" in result.stderr) is is_first
        assert spec_of(result.stdout) == "ngram+dflash"
    assert len(list(tmp_path.rglob("*.gguf"))) == 1


def test_a_draft_of_another_model_is_refused_with_the_reason(run: Run, tiny_model: Path, test_models: Path) -> None:
    draft = tiny_model.with_name("luce-tiny-dflash-Q8_0.gguf")
    other = test_models / "qwen3.gguf"
    for command in (["luce-daemon"], ["luce", "serve", "--port", "0"], ["luce", "run", "x"]):
        result = run(*command, "--model", other, "--draft", draft, input=b"")
        assert result.returncode == 2, result.stderr
        assert str(draft).encode() + b": the draft does not fit the model: " in result.stdout + result.stderr
        assert b"name a draft that was made for this model" in result.stdout + result.stderr
