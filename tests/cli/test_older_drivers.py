"""The command lines of older drivers: `luce-daemon` takes them, does what they mean, and says what does nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from luce.supervisor.cli.serve import known_flags
from luce.supervisor.config.loading import read_configuration
from luce.supervisor.config.table import gone_options
from tests.cli.conftest import Run

PROMPT = "329,285,1420,261,1319"
SHAPE = ("--ctx", "512", "--draft-method", "none", "--threads", "1", "--seed", "1")


def test_a_drivers_line_generates_from_named_tokens(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT + "\n")
    plain = run("luce-daemon", "--model", tiny_model, *SHAPE, "--pipe", "--text-ids", "-n", "8", input=PROMPT.encode())
    ids = plain.stdout.split()
    assert len(ids) == 8
    older = ("--kv-k", "q8_0", "--kv-v", "q8_0", "--fast-rollback", "--ddtree-budget", "22", "--csv", "--ignore-eos")
    for source in (("--tokens", PROMPT), ("--tokens-file", file)):
        told = run("luce-daemon", "--model", tiny_model, *SHAPE, *older, "--n-predict", "8", *source)
        assert told.returncode == 0, told.stderr
        assert told.stdout == b",".join(ids) + b"\n"
        said = told.stderr.decode()
        assert said.count("does nothing any more") == 2
        assert "--ddtree-budget does nothing any more: --draft-tree N" in said


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--tokens", "1,x"), "--tokens held 'x', which is no decimal token id"),
        (("--tokens", ""), "--tokens held no prompt ids"),
        (("--tokens-file", "missing.txt"), "missing.txt: No such file"),
        (("--tokens", "1", "--tokens-file", "missing.txt"), "give one of them"),
        (("--csv",), "--csv belongs to --pipe"),
        (("--tokens", "1", "--mux"), "leave --stream-fd and --mux out"),
    ],
)
def test_what_is_wrong_with_it_is_said(run: Run, tiny_model: Path, arguments: tuple[str, ...], text: str) -> None:
    told = run("luce-daemon", "--model", tiny_model, *arguments, input=b"")
    assert told.returncode == 64
    assert text in told.stderr.decode()


def test_each_that_does_nothing_says_so_in_one_line(run: Run, tmp_path: Path) -> None:
    line = [word for option in gone_options() for word in [f"--{option.name}", *(["1"] if option.takes else [])]]
    told = run("luce-daemon", "--model", tmp_path / "none.gguf", *line)
    said = re.findall(r"--(\S+) does nothing any more: (.+)", told.stderr.decode())
    assert said == [(option.name, option.why) for option in gone_options() if option.why]


def test_none_is_a_value_where_it_is_one_of_the_choices(tmp_path: Path) -> None:
    """Elsewhere it means that an option is not set."""
    fields = ("draft_method", "rope_scaling", "split_mode")
    variables = {f"LUCE_{field.upper()}": "none" for field in (*fields, "flash_attn")}
    by_variables = read_configuration(known_flags(), {}, variables, None)
    (tmp_path / "luce.toml").write_text("".join(f'{field} = "none"\n' for field in (*fields, "flash_attn")))
    by_file = read_configuration(known_flags(), {}, {}, tmp_path / "luce.toml")
    for configuration in (by_variables, by_file):
        assert [configuration[field] for field in (*fields, "flash_attn")] == ["none", "none", "none", None]
