"""`luce convert`, as a shell would start it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from luce.supervisor.models.gguf_header import read_gguf_header
from tests.conversion.checkpoints import (
    N_TARGET_LAYERS,
    byte_level_tokenizer,
    checkpoint,
    vocabulary,
)

LUCE = Path(sys.executable).parent / "luce"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(LUCE), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_it_writes_where_draft_finds_it(tmp_path: Path, target: Path) -> None:
    folder = checkpoint().write(tmp_path / "drafter")
    result = run("convert", folder, "--target", target)
    assert (result.returncode, result.stderr) == (0, "")
    assert "up to 3 tokens are drafted at once" in result.stdout
    assert read_gguf_header(folder / "draft-bf16.gguf").metadata["general.architecture"] == "dflash"
    assert run("convert", folder, "--target", target, "--type", "q8_0").returncode == 0
    types = {tensor.quantization for tensor in read_gguf_header(folder / "draft-q8_0.gguf").tensors}
    assert types == {"Q8_0", "F32"}


def test_out_names_the_place(tmp_path: Path, target: Path) -> None:
    folder = checkpoint().write(tmp_path / "drafter")
    out = tmp_path / "sub dir" / "x.gguf"
    out.parent.mkdir()
    assert run("convert", folder, "--target", target, "--out", out).returncode == 0
    assert [path.name for path in out.parent.iterdir()] == ["x.gguf"]
    assert not list(folder.glob("*.gguf"))


def test_refusals_say_what_to_do(tmp_path: Path, target: Path) -> None:
    source = checkpoint()
    source.config["dflash_config"].pop("mask_token_id")
    folder = source.write(tmp_path / "drafter")
    result = run("convert", folder, "--target", target)
    assert (result.returncode, result.stdout) == (1, "")
    assert "dflash_config.mask_token_id: it is missing" in result.stderr
    assert "Traceback" not in result.stderr
    assert run("convert", folder, "--type", "q4_0").returncode == 64
    assert run("convert").returncode == 64


def test_notes_are_shown(tmp_path: Path, target: Path) -> None:
    source = checkpoint()
    source.config["rope_theta"] = 5.0
    result = run("convert", source.write(tmp_path / "drafter"), "--target", target)
    assert result.returncode == 0
    assert "Note: the drafter rotates with base 5" in result.stdout


@pytest.mark.parametrize("with_target", [True, False])
def test_a_reader_of_the_last_layer_is_converted_and_said(with_target: bool, tmp_path: Path, target: Path) -> None:
    source = checkpoint()
    source.config["dflash_config"]["target_layer_ids"] = [0, N_TARGET_LAYERS - 1]
    folder = source.write(tmp_path / "drafter")
    (folder / "tokenizer.json").write_text(json.dumps(byte_level_tokenizer(vocabulary())))
    result = run("convert", folder, *(("--target", target) if with_target else ()))
    assert result.returncode == 0
    said = " ".join(result.stdout.split())
    assert "Note: luced cannot run the result yet: it reads the output of the last layer, which this version" in said
    assert (folder / "draft-bf16.gguf").exists()


def test_help_teaches() -> None:
    text = run("convert", "--help").stdout
    for word in ("--target", "--type", "--out", "Examples", "--draft", "Exit codes"):
        assert word in text
    assert "convert" in run("--help").stdout
