"""The records of commands.json are defined there alone: what is checked in is made of it, few files name a field."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from luce.protocol import GenerationStats, LocalProtocolError, SamplerKind, SamplingArgs, Speculation, check_sampling
from luce.protocol.command_table import SAMPLING_DEFAULTS

from .vector_data import ROOT

MAKER = ROOT / "cmake" / "make_protocol.py"
SOURCES = ("cmake", "cluster", "docs", "native", "protocol", "supervisor")
MADE = {"protocol/records.py", "protocol/PROTOCOL.md"}


@pytest.mark.parametrize("name", ["records.py", "PROTOCOL.md"])
def test_what_is_checked_in_is_made_of_the_table(name: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, MAKER, ROOT / "protocol" / "commands.json", tmp_path / name], check=True)
    assert (tmp_path / name).read_text("utf-8") == (ROOT / "protocol" / name).read_text("utf-8"), f"run {MAKER.name}"


def naming(field: str) -> set[str]:
    """The files that someone edits for it, tests apart."""
    files = (
        path
        for folder in SOURCES
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".h", ".cpp", ".json", ".md"}
    )
    named = {str(path.relative_to(ROOT)) for path in files if field in path.read_text("utf-8")}
    return {name for name in named - MADE if not name.startswith(("native/tests/", "protocol/vectors/"))}


@pytest.mark.parametrize("field", ["top_n_sigma", "xtc_threshold", "dynatemp_exponent"])
def test_a_sampler_option_touches_at_most_six_files(field: str) -> None:
    named = naming(field)
    assert {"protocol/commands.json", "native/llama/sampling/llama_sampler.cpp"} <= named
    assert len(named) <= 6, sorted(named)


def test_a_statistic_of_the_wire_touches_few_files() -> None:
    assert naming("decode_tok_s") == {"protocol/commands.json"}


def test_defaults_are_those_of_the_daemon() -> None:
    assert SAMPLING_DEFAULTS["order"] == list(SamplerKind)
    assert (SAMPLING_DEFAULTS["top_n_sigma"], SAMPLING_DEFAULTS["xtc_threshold"]) == (0, 0.1)


def test_records_add_up() -> None:
    one, two = Speculation(1, 2, 3, 4, 0.5, 1.5), Speculation(10, 20, 30, 40, 0.25, 0.75)
    assert one + two == Speculation(11, 22, 33, 44, 0.75, 2.25)
    assert GenerationStats().speculation is None


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingArgs(top_p=0.0),
        SamplingArgs(xtc_threshold=1.5),
        SamplingArgs(top_n_sigma=-1.0),
        SamplingArgs(logit_bias=((-1, 1.0),)),
        SamplingArgs(order=(SamplerKind.XTC, SamplerKind.XTC)),
    ],
)
def test_what_the_daemon_would_refuse_is_refused_before(sampling: SamplingArgs) -> None:
    with pytest.raises(LocalProtocolError):
        check_sampling(sampling)


def test_what_the_daemon_takes_is_taken() -> None:
    check_sampling(SamplingArgs())
    check_sampling(SamplingArgs(xtc_probability=0.0, xtc_threshold=0.6, top_n_sigma=0.0, seed=0))
