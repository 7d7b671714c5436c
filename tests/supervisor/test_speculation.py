"""Speculation as embedders have it: where a draft comes from, and what the last event says."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import aclosing
from pathlib import Path

import pytest

from luce.supervisor import FinishedEvent, GenerateRequest, StartError, Supervisor, SupervisorConfig, TokenEvent
from luce.supervisor.engine.watchdog import EngineState
from tests.supervisor.streams import collect

PROMPT = (329, 285, 1420)
DRAFT = "luce-tiny-dflash-Q8_0.gguf"
TIMEOUT_S = 120.0


async def finish(supervisor: Supervisor, n_tokens: int = 32) -> FinishedEvent:
    request = GenerateRequest(prompt_ids=PROMPT, max_tokens=n_tokens, temperature=0, ignore_eos=True)
    async with aclosing(supervisor.generate(request)) as events:
        async for event in events:
            if isinstance(event, FinishedEvent):
                return event
    raise AssertionError("a generation ends with FinishedEvent")


async def test_the_last_event_says_what_was_drafted(tiny_model: Path) -> None:
    config = SupervisorConfig(
        model=tiny_model, draft=tiny_model.with_name(DRAFT), draft_gate="off", lanes=1, threads=1, log_level="warn"
    )
    async with Supervisor(config) as supervisor:
        said = (await finish(supervisor)).speculation
        (engine,) = supervisor.status().engines
        (figures,) = await supervisor.engine_status()
    assert engine.info is not None
    assert engine.info.speculation == "ngram+dflash"
    assert said is not None
    assert 0 <= said.n_accepted <= said.n_drafted
    assert 0 < said.n_speculated_steps <= said.n_steps <= 32
    assert 31 <= said.n_steps + said.n_accepted <= 33
    assert said.draft_s > 0
    assert said.verify_s > 0
    assert (int(figures["spec_drafted"]), int(figures["spec_steps"])) == (said.n_drafted, said.n_steps)


async def test_drafts_are_as_good_after_a_crash(tiny_model: Path) -> None:
    """The new engine's drafter reads the features of all that was generated before, as if it had been the prompt."""
    config = SupervisorConfig(
        model=tiny_model, draft=tiny_model.with_name(DRAFT), draft_gate="off", draft_ngram="off", draft_max=4,
        lanes=1, threads=1, no_warmup=True, log_level="warn",
    )  # fmt: skip
    n_tokens, n_before = 800, 70  # the engine must not be done before this process has read so many
    request = GenerateRequest(prompt_ids=PROMPT, max_tokens=n_tokens, temperature=0, ignore_eos=True)
    tokens: list[int] = []
    async with Supervisor(config) as supervisor:
        async with aclosing(supervisor.generate(request)) as events:
            async for event in events:
                if isinstance(event, TokenEvent):
                    tokens.append(event.token)
                    if len(tokens) == n_before:
                        (engine,) = supervisor.status().engines
                        assert engine.pid is not None
                        os.kill(engine.pid, signal.SIGKILL)
                elif isinstance(event, FinishedEvent):
                    said = event.speculation
        assert said is not None
        assert supervisor.status().n_resumes == 1
        # All tokens of the second engine but its first one came from steps.
        n_second = said.n_steps + said.n_accepted + 1
        assert n_second <= n_tokens - n_before
        rest = GenerateRequest(
            prompt_ids=(*PROMPT, *tokens[:-n_second]), max_tokens=n_second, temperature=0, ignore_eos=True, reuse=False
        )
        undisturbed = await collect(supervisor, rest)
    assert undisturbed.tokens == tokens[-n_second:]
    assert undisturbed.end.speculation is not None
    expected = (undisturbed.end.speculation.n_drafted, undisturbed.end.speculation.n_accepted)
    assert (said.n_drafted, said.n_accepted) == expected
    assert said.n_accepted > said.n_steps // 4


async def test_without_speculation_it_says_nothing(tiny_model: Path) -> None:
    config = SupervisorConfig(model=tiny_model, draft_max=0, lanes=1, threads=1, log_level="warn")
    async with Supervisor(config) as supervisor:
        assert (await finish(supervisor)).speculation is None
        (figures,) = await supervisor.engine_status()
        assert [name for name in figures if name.startswith("spec_")] == []


async def test_each_engine_has_its_own_draft(
    tiny_model: Path, data_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    log: list[str] = []
    checkpoint = data_models / "luce-tiny-dflash-hf"
    config = SupervisorConfig(
        model=tiny_model,
        draft=checkpoint,
        ctx=512,
        lanes=1,
        threads=1,
        no_warmup=True,
        engines=[{}, {"draft": None}, {}],
    )
    async with Supervisor(config, on_log=log.append) as supervisor:
        words = [engine.info.speculation for engine in supervisor.status().engines if engine.info is not None]
    assert words == ["ngram+dflash", "ngram", "ngram+dflash"]
    assert len([line for line in log if line.startswith("converting")]) == 1


async def test_a_draft_that_does_not_fit_one_of_two_engines_is_told_and_the_other_serves(
    tiny_model: Path, test_models: Path
) -> None:
    draft = test_models / "drafts" / "dflash-qwen3.gguf"
    config = SupervisorConfig(model=tiny_model, draft=tiny_model.with_name(DRAFT), engines=[{}, {"draft": draft}])
    told = asyncio.Event()

    def read(line: str) -> None:
        if "does not fit the model" in line and str(draft) in line:
            told.set()

    async with Supervisor(config, on_log=read) as supervisor:
        await asyncio.wait_for(told.wait(), TIMEOUT_S)
        fitting, other = supervisor.status().engines
        assert fitting.state is EngineState.READY
        assert other.state is not EngineState.READY


async def test_a_draft_that_does_not_fit_is_refused_with_its_name(tiny_model: Path, test_models: Path) -> None:
    config = SupervisorConfig(model=test_models / "qwen3.gguf", draft=tiny_model.with_name(DRAFT))
    with pytest.raises(StartError, match=r"^draft .*dflash.*does not fit the model"):
        async with Supervisor(config):
            pass
