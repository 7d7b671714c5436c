"""What sessions are like, by sessions whose figures are known; and what features bring, from end to end with the
packaged model. No times but the transcripts' own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from scripts.bench.replay.run import Served
from scripts.bench.sessions.isolation import Played
from scripts.bench.sessions.sessions import main


def played(first_s: float, tokens: tuple[int, ...] = (1, 2)) -> Played:
    served = Served(first_s, 2 * first_s, 100, 50, "none", "none", tokens)
    return Played({("a", 1): served, ("a", 2): replace(served, tokens=(7,))}, 3 * first_s, cpu_s=first_s)


@pytest.mark.full_only
def test_sessions_are_taken_apart_by_the_packaged_model(tmp_path: Path) -> None:
    """Two sessions at once, at a thousandth of their pace; what a cache brings is seen in what is read again."""
    out = tmp_path / "it.json"
    arguments = ["--ctx", "900", "--max-tokens", "1", "--rounds", "1", "--system-bytes", "100", "--threads", "1",
                 "--agents", "2", "--limit", "2", "--pace", "0.001", "--json", str(out)]  # fmt: skip
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    for said in ("prompt, tokens", "known from any request before", "prefix-cache alone", "both over the product"):
        assert said in result.output
    found = json.loads(out.read_text())
    (arms,) = found["rounds"]
    assert set(arms) == {"neither", "prefix-cache", "speculation", "prefix-cache+speculation"}
    assert arms["neither"]["reused"] == arms["speculation"]["reused"] == 0
    assert arms["prefix-cache"]["reused"] > 0.4
    assert all(played["cpu_s"] > 0 and 0 <= played["others"] <= 1 for played in arms.values())
    assert len(found["distributions"]["prompt"]) > 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--features", "prefix-cache"], "give two of"),
        (["--features", "prefix-cache,prefix-cache"], "give two of"),
        (["--features", "prefix-cache,magic"], "give two of"),
        (["--features", "none", "--ctx", "64"], "no request fits --ctx 64"),
    ],
)
def test_what_cannot_be_taken_apart(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code != 0
    assert said in " ".join(result.output.split())
