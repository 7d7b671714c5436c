"""A real engine for each test that asks for one."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor import DaemonConfig, EngineClient, EngineProcess, SupervisorConfig
from tests.supervisor.streams import FaultyEngine, make_fault_injector


@pytest.fixture(autouse=True)
def own_temporary_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary files of this test and of its engines: what is left there is ours."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def config(tiny_model: Path) -> DaemonConfig:
    return DaemonConfig(model=tiny_model, ctx=16384, lanes=4, threads=1, no_warmup=True, log_level="warn")


@pytest.fixture
async def process(luced: Path, config: DaemonConfig) -> AsyncIterator[EngineProcess]:
    async with await EngineProcess.spawn(luced, config) as running:
        await running.wait_ready(timeout_s=120)
        yield running


@pytest.fixture
async def client(process: EngineProcess) -> AsyncIterator[EngineClient]:
    async with EngineClient(process) as connected:
        yield connected


@pytest.fixture
def brisk(tiny_model: Path) -> SupervisorConfig:
    """A supervisor that makes up its mind quickly."""
    return SupervisorConfig(
        model=tiny_model,
        ctx=2048,
        pool=8192,
        lanes=4,
        threads=1,
        no_warmup=True,
        log_level="warn",
        ping_interval_s=0.05,
        stopped_timeout_s=0.5,
        asleep_timeout_s=4.0,
        restart_delay_s=0.01,
        pin_min_tokens=256,  # prompts are short here
    )


@pytest.fixture
def faulty(brisk: SupervisorConfig, luced: Path, tmp_path: Path) -> FaultyEngine:
    """faulty(POISON=…, …): `brisk` with tests/supervisor/fault_injector.py in luced's place."""
    program = make_fault_injector(tmp_path)

    def make(*, changes: dict[str, Any] | None = None, **variables: object) -> SupervisorConfig:
        environment = {"LUCED_BEHIND": str(luced), **{f"MEDDLER_{k}": str(v) for k, v in variables.items()}}
        engine = {"env": environment, "binary": program}
        return dataclasses.replace(brisk, engines=[engine], **(changes or {}))

    return make
