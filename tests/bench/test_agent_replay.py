"""A replay from end to end with the packaged model: what is asked, what is reused, and that answers stay the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from luce.supervisor import SupervisorConfig
from luce.supervisor.evaluating.transcripts import Session, read_session, read_transcript
from scripts.bench.replay.agent_replay import Plan, main, prepare, replay
from scripts.bench.replay.prompts import Setting
from scripts.bench.replay.report import Report
from tests.daemon.same_tokens import NOISE_BATCHING, Comparison

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "data" / "transcripts"
SHORT = Setting(system_bytes=100)


@pytest.fixture
def settings(luced: Path, tiny_model: Path) -> SupervisorConfig:
    return SupervisorConfig(
        model=tiny_model, binary=luced, ctx=900, lanes=1, threads=1, no_warmup=True, log_level="error"
    )


@pytest.fixture
def sessions() -> list[Session]:
    return [read_transcript(FOLDER / f"{name}.jsonl") for name in ("claude-agents", "claude-fix")]


def two_questions(system: bool = False) -> Session:
    lines: list[dict[str, Any]] = [
        {"type": "user", "message": {"content": "one"}},
        {"type": "assistant", "message": {"id": "1", "content": "first answer"}},
        {"type": "user", "message": {"content": "two"}},
        {"type": "assistant", "message": {"id": "2", "content": "second answer"}},
    ]
    if system:
        lines = [
            {"type": "response_item", "payload": {"type": "message", "role": role, "content": role}}
            for role in ("user", "assistant", "developer", "user", "assistant")
        ]
    return read_session("two", [json.dumps(line).encode() for line in lines])


@pytest.mark.full_only
async def test_warm_reuses_and_answers_the_same(settings: SupervisorConfig, sessions: list[Session]) -> None:
    """Two sessions and a title, cut where the context ends; cold against warm by the rule of equal tokens."""
    prepared = prepare(settings, sessions, SHORT, 6)
    assert all(session.n_too_long > 0 for session in prepared), "this context was to be too short"
    cold, warm = await replay(settings, prepared, Plan(6, 1, 1, 0.0, 120.0, with_margins=True))
    report = Report.of(prepared, cold, warm)
    turns = [turn for session in report.sessions for turn in session.turns]
    assert len(turns) >= 9
    assert not report.failures
    comparison = Comparison(NOISE_BATCHING)
    for turn in turns:
        (before,), (after,) = turn.cold, turn.warm
        assert before.n_reused == 0
        assert len(before.tokens) == min(turn.prompt.n_answer, 6)
        assert before.n_prompt == after.n_prompt == len(turn.prompt.ids)
        comparison.check(f"{turn.prompt.session} {turn.prompt.number}", after.tokens, before.tokens, before.margins)
    comparison.finish()
    # From the second request of a conversation on, all up to the last answer is there.
    agents = report.sessions[0].turns
    followed = [turn for turn in agents if turn.prompt.number in {3, 5, 6}]
    assert len(followed) == 3
    assert all(turn.last_warm.n_reused > turn.last_warm.n_prompt / 2 for turn in followed)


async def test_a_request_that_fails_is_told(settings: SupervisorConfig) -> None:
    prepared = prepare(settings, [two_questions()], SHORT, 2)
    served = await replay(settings, prepared, Plan(2, 1, 1, 0.0, 1e-6))
    failures = Report.of(prepared, *served).failures
    assert len(failures) == 4
    assert all("deadline" in failure for failure in failures)


# The program


def test_the_program_prints_a_table(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes((FOLDER / "claude-agents.jsonl").read_bytes() + b"{torn\n")
    (tmp_path / "empty.jsonl").write_text("")
    arguments = [str(tmp_path), "--model", str(tiny_model), "--ctx", "560", "--repeats", "1", "--max-tokens", "2",
                 "--threads", "1", "--system-bytes", "200"]  # fmt: skip
    ran = CliRunner().invoke(main, arguments)
    assert ran.exit_code == 0, ran.output
    assert "mine (claude)" in ran.output
    assert "no request in it" in ran.output
    assert "1 lines that are not JSON" in ran.output


def test_without_a_request_there_is_nothing_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("[]\n")
    ran = CliRunner().invoke(main, [str(tmp_path)])
    assert ran.exit_code == 1
    assert "no request in these transcripts" in ran.output
