"""A replay from end to end with the packaged model: what is asked, what is reused, and that answers stay the same."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from luce.supervisor import SupervisorConfig
from luce.supervisor.evaluating.transcripts import Session, made_up_system, read_session, read_transcript
from luce.supervisor.text import TextModel
from scripts.bench.replay.agent_replay import Plan, main, prepare, read_all, replay
from scripts.bench.replay.prompts import Prepared, PromptMaker, Setting
from scripts.bench.replay.report import Ratio, Report
from scripts.bench.replay.run import Served, play
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


def fake_pass(sessions: Sequence[Prepared], ttft_s: float, **values: Any) -> dict[tuple[str, int], Served]:
    served = Served(ttft_s, ttft_s * 2, 100, 60, "resident", "none", (1, 2))
    return {
        (prompt.session, prompt.number): dataclasses.replace(served, **values)
        for session in sessions
        for prompt in session.prompts
    }


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


async def test_sessions_run_at_once_and_each_in_order(settings: SupervisorConfig, sessions: list[Session]) -> None:
    prepared = prepare(settings, sessions, SHORT, 2)
    running: dict[str, int] = {}
    most = 0

    class Recorder:
        """Answers when every session that can be is there."""

        def __init__(self) -> None:
            self.asked: list[tuple[str, int]] = []

        async def ask(self, prompt: Any, max_tokens: int) -> Served:
            nonlocal most
            self.asked.append((prompt.session, prompt.number))
            running[prompt.session] = running.get(prompt.session, 0) + 1
            assert running[prompt.session] == 1, "a session's requests follow each other"
            most = max(most, len([n for n in running.values() if n]))
            await asyncio.sleep(0)
            running[prompt.session] -= 1
            return Served(0.1, 0.2, len(prompt.ids), 0, "none", "none", (1,) * max_tokens)

    target = Recorder()
    served = await play(target, prepared, max_tokens=2, concurrency=2)
    assert most == 2
    assert set(served) == {(p.session, p.number) for session in prepared for p in session.prompts}
    for session in prepared:
        numbers = [number for name, number in target.asked if name == session.session.name]
        assert numbers == [prompt.number for prompt in session.prompts]


async def test_a_request_that_fails_is_told(settings: SupervisorConfig) -> None:
    prepared = prepare(settings, [two_questions()], SHORT, 2)
    served = await replay(settings, prepared, Plan(2, 1, 1, 0.0, 1e-6))
    failures = Report.of(prepared, *served).failures
    assert len(failures) == 4
    assert all("deadline" in failure for failure in failures)


# Prompts


def test_a_prompt_begins_as_the_one_before(tiny_model: Path) -> None:
    session = read_transcript(FOLDER / "rollout-codex-feature.jsonl")
    with TextModel(tiny_model) as model:
        prepared = PromptMaker(model, [session], SHORT).prepare(session, n_ctx=100_000, max_tokens=8)
        assert len(prepared.prompts) == len(session.turns)
        for before, after in zip(prepared.prompts, prepared.prompts[1:], strict=False):
            assert after.ids[: len(before.ids)] == before.ids, "with the recorded answer in place of the model's"
            assert set(before.boundaries) < set(after.boundaries)
        text = model.detokenize(prepared.prompts[1].ids, unparse_special=True).decode()
    assert text.index("<permissions>") < text.index("counts the open tickets") < text.rindex("<tool_call>")
    assert '"name": "exec_command"' in text[: text.index("<|im_end|>")], "tools are defined first"


def test_sessions_of_one_client_share_their_beginning(tiny_model: Path, sessions: list[Session]) -> None:
    with TextModel(tiny_model) as model:
        maker = PromptMaker(model, sessions, SHORT)
        first, second = (maker.prepare(session, n_ctx=100_000, max_tokens=8).prompts for session in sessions)
    one, two = first[0].ids, second[1].ids
    n_common = next(n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)
    assert n_common >= one.tolist().index(one[-1], 1)
    assert n_common > len(made_up_system("claude", "main", 100)) / 8
    assert second[0].kind == "title"
    assert len(second[0].ids) < n_common, "a title is asked for without tools and with a prompt of its own"


def test_a_system_prompt_and_tools_that_are_given_take_the_place_of_made_up_ones(tiny_model: Path) -> None:
    session = two_questions()
    tool = {"type": "function", "function": {"name": "given", "parameters": {"type": "object", "properties": {}}}}
    with TextModel(tiny_model) as model:
        maker = PromptMaker(model, [session], Setting(system="Be short.", tools=[tool]))
        prompt = maker.prepare(session, n_ctx=1000, max_tokens=8).prompts[0]
        text = model.detokenize(prompt.ids, unparse_special=True).decode()
    assert "Be short.\n\n# Tools" in text
    assert '"name": "given"' in text


def test_a_late_system_message_becomes_the_users_where_the_template_wants_it(tiny_model: Path) -> None:
    session = two_questions(system=True)
    strict = (
        "{%- for m in messages %}{%- if m.role == 'system' and not loop.first %}{{- raise_exception('no') }}"
        "{%- endif %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}"
    )
    roles = []
    for template in (None, strict):
        with TextModel(tiny_model, chat_template=template) as model:
            messages = PromptMaker(model, [session], SHORT).messages(session, session.turns[-1])
            roles.append([message["role"] for message in messages])
    assert roles == [["system", "user", "assistant", "system", "user"], ["system", "user", "assistant", "user"]]
    assert messages[-1]["content"] == "developer\n\nuser"


def test_what_the_template_refuses_is_counted(tiny_model: Path) -> None:
    session = two_questions()
    with TextModel(tiny_model, chat_template="{{ raise_exception('never') }}") as model:
        prepared = PromptMaker(model, [session], SHORT).prepare(session, n_ctx=1000, max_tokens=8)
    assert (prepared.prompts, prepared.n_unrendered) == ([], 2)
    assert "never" in prepared.template_error


# Reports


def test_ratios_are_of_pairs() -> None:
    ratio = Ratio.of([(2.0, 1.0), (9.0, 3.0), (4.0, 1.0)])
    assert (ratio.median, ratio.low, ratio.high) == (3.0, 2.0, 4.0)
    assert Ratio.of([]).median == 1.0


def test_where_answers_part_is_told(settings: SupervisorConfig) -> None:
    prepared = prepare(settings, [two_questions()], SHORT, 2)
    cold, warm = fake_pass(prepared, 1.0, tokens=(1, 2, 3)), fake_pass(prepared, 1.0, tokens=(1, 2, 3))
    warm["two", 2] = dataclasses.replace(warm["two", 2], tokens=(1, 4, 3))
    turns = Report.of(prepared, [cold], [warm]).to_json()["sessions"][0]["turns"]
    assert [(turn["same_tokens"], turn["parted_at"]) for turn in turns] == [(True, None), (False, 1)]


def test_failed_turns_are_left_out_of_the_sums(settings: SupervisorConfig) -> None:
    prepared = prepare(settings, [two_questions()], SHORT, 2)
    cold, warm = fake_pass(prepared, 4.0), fake_pass(prepared, 1.0)
    warm["two", 2] = dataclasses.replace(warm["two", 2], failure="deadline: over")
    report = Report.of(prepared, [cold], [warm], ctx=1)
    values = json.loads(json.dumps(report.to_json()))
    assert values["ttft_speedup"]["median"] == 4.0
    assert values["ttft_speedup"]["cold_s"] == 4.0, "one turn, not two"
    assert values["failures"] == ["two turn 2: deadline: over"]


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


def test_sessions_of_one_name_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.jsonl").write_bytes((FOLDER / "claude-agents.jsonl").read_bytes())
    assert len(read_all([tmp_path], None, Console())) == 1
    assert "another session has this name" in capsys.readouterr().out.replace("\n", " ")
