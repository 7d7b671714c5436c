"""The commands, from transcripts to tables; and the simulator's memory beside real replicas of the packaged model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from scripts.sim.simulate import main
from scripts.sim.validate import main as validate


def test_from_transcripts_to_a_table(tmp_path: Path) -> None:
    out = tmp_path / "it.json"
    arguments = ["--replicas", "2", "--routers", "sticky,ours", "--minutes", "1", "--warm-up", "0.5", "--tick", "0.5",
                 "--vary", "load=0.3,0.6", "--json", str(out)]  # fmt: skip
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "calm, 2 replicas, 1 minutes" in result.output
    runs = json.loads(out.read_text())["runs"]
    assert [(run["plan"]["router"], run["varied"]) for run in runs] == [
        ("sticky", 0.3), ("ours", 0.3), ("sticky", 0.6), ("ours", 0.6),
    ]  # fmt: skip
    assert all(0.5 < run["figures"]["hit_share"] <= run["figures"]["ideal_share"] for run in runs)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--routers", "best"], "'best': give some of random, two-choices"),
        (["--replicas", "0"], "numbers of at least 1"),
        (["--set", "speed=1"], "there is no price 'speed'"),
        (["--prices", "abacus"], "there are no prices 'abacus'"),
        (["--vary", "load"], "give NAME=VALUE"),
        (["--vary", "mood=1", "--replicas", "1"], "'mood' cannot be varied"),
    ],
)
def test_what_cannot_be_simulated(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code != 0
    assert said in " ".join(result.output.split())


def test_real_replicas_find_nearly_what_simulated_ones_do(tmp_path: Path) -> None:
    out = tmp_path / "it.json"
    arguments = ["--replicas", "1", "--limit", "2", "--ctx", "900", "--system-bytes", "100", "--json", str(out)]
    result = CliRunner().invoke(validate, arguments)
    assert result.exit_code == 0, result.output
    (run,) = json.loads(out.read_text())["runs"]
    assert all(real <= simulated for real, simulated in zip(run["real"], run["simulated"], strict=True))
    assert sum(run["simulated"]) > 1000
    assert sum(run["real"]) > 0.9 * sum(run["simulated"])
