"""What sessions are like, by sessions whose figures are known; and what features bring, from end to end with the
packaged model. No times but the transcripts' own."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from luce.supervisor import SupervisorConfig
from luce.supervisor.evaluating.transcripts import Session, read_session
from scripts.bench.replay.prompts import Prepared, Prompt
from scripts.bench.replay.run import Served
from scripts.bench.sessions.distributions import Quantiles, distributions_of, n_common
from scripts.bench.sessions.features import FEATURES, Parts, arm
from scripts.bench.sessions.isolation import ARMS, Arm, Played, arm_rows, together
from scripts.bench.sessions.sessions import main

PARTS = Parts(Path("draft"), 640, Path("scorer"), 3)


def session(name: str) -> Session:
    """A question, a call of a tool that takes 3 s, an answer, 10 s later another question."""
    call = {"type": "tool_use", "id": "t1", "name": "Read", "input": {"path": "a"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "text"}
    lines: list[dict[str, Any]] = [
        {"type": "user", "timestamp": "2026-01-05T10:00:00Z", "message": {"content": "one"}},
        {"type": "assistant", "timestamp": "2026-01-05T10:00:05Z", "message": {"id": "1", "content": [call]}},
        {"type": "user", "timestamp": "2026-01-05T10:00:08Z", "message": {"content": [result]}},
        {"type": "assistant", "timestamp": "2026-01-05T10:00:10Z", "message": {"id": "2", "content": "done"}},
        {"type": "user", "timestamp": "2026-01-05T10:00:20Z", "message": {"content": "two"}},
        {"type": "assistant", "timestamp": "2026-01-05T10:00:22Z", "message": {"id": "3", "content": "yes"}},
    ]
    return read_session(name, [json.dumps(line).encode() for line in lines])


def prepared(name: str, *prompts: list[int]) -> Prepared:
    whole = session(name)
    assert len(whole.turns) == len(prompts) == 3
    return Prepared(
        whole,
        [
            Prompt(name, number, turn.kind, array("i", ids), (), 4, turn.think_s)
            for number, (turn, ids) in enumerate(zip(whole.turns, prompts, strict=True), start=1)
        ],
    )


def test_what_sessions_are_like() -> None:
    first = prepared("a", [1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 9, 9, 9, 9])
    second = prepared("b", [1, 2, 8, 8], [1, 2, 8, 8, 8], [1, 2, 3, 4, 5, 6, 7, 0])
    found = distributions_of([first, second])
    assert (found.n_sessions, found.n_requests) == (2, 6)
    assert found.prompt == [4, 8, 10, 4, 5, 8]
    assert found.of_conversation == [4 / 8, 6 / 10, 4 / 5, 2 / 8]
    assert found.new == [4, 4, 1, 6]
    # The last one is nearest to another session's second request.
    assert found.of_any == [0, 4 / 8, 6 / 10, 2 / 4, 4 / 5, 7 / 8]
    assert found.tools_s == [3, 3]
    assert found.person_s == [10, 10]
    assert found.tool_s == {"Read": [3, 3]}
    assert found.answer == [4] * 6
    assert Quantiles.of([1, 2, 3]) == Quantiles(3, 1.2, 2, 2.8, 3)
    assert Quantiles.of([]) is None


def test_common_beginnings() -> None:
    assert n_common(array("i", [1, 2, 3]), array("i", [1, 2, 3, 4])) == 3
    assert n_common(array("i", [1]), array("i", [2])) == 0
    assert n_common(array("i"), array("i", [2])) == 0


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_is_on_or_off_whatever_the_other_is(name: str) -> None:
    config = SupervisorConfig(model=Path("m"), ctx=4096, lanes=2)

    def of(config: SupervisorConfig) -> Mapping[str, Any]:
        kept = {
            "prefix-cache": ("prefix_cache", "slots"), "speculation": ("draft", "draft_max"),
            "bounded-kv": ("kvflash", "pool"), "sparse-prefill": ("prefill", "prefill_scorer"), "lanes": ("lanes",),
        }  # fmt: skip
        return {field: getattr(config, field) for field in kept[name]}

    alone = {is_on: of(arm(config, {name: is_on}, PARTS)) for is_on in (False, True)}
    assert alone[False] != alone[True]
    for other in FEATURES.keys() - {name}:
        for is_on in (False, True):
            for is_other_on in (False, True):
                chosen = {name: is_on, other: is_other_on}
                assert of(arm(config, chosen, PARTS)) == alone[is_on]
                assert of(arm(config, dict(reversed(chosen.items())), PARTS)) == alone[is_on]


def played(first_s: float, tokens: tuple[int, ...] = (1, 2)) -> Played:
    served = Served(first_s, 2 * first_s, 100, 50, "none", "none", tokens)
    return Played({("a", 1): served, ("a", 2): replace(served, tokens=(7,))}, 3 * first_s, cpu_s=first_s)


def test_ratios_are_of_rounds_and_say_what_both_bring_together() -> None:
    rounds: list[dict[Arm, Played]] = [
        dict(zip(ARMS, (played(8), played(2), played(4), played(2)), strict=True)),
        dict(zip(ARMS, (played(8), played(4), played(4), played(1, tokens=(1, 3))), strict=True)),
    ]
    neither, one, _, both = arm_rows(("a", "b"), rounds)
    assert (neither.first.median, neither.same) == (1, 1)
    assert (one.name, one.first.median, one.first.low, one.first.high) == ("a alone", 3, 2, 4)
    assert (both.name, both.wall.low, both.wall.high, both.same) == ("both", 4, 8, 0.5)
    assert (both.reused, both.cpu.low, both.cpu.high) == (0.5, 4, 8)
    product = together(rounds)["first"]
    assert (product.low, product.high) == (4 / (4 * 2), 8 / (2 * 2))


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
