"""A real engine for each test that asks for one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from luce.supervisor import DaemonConfig, EngineClient, EngineProcess


@pytest.fixture
def config(tiny_model: Path) -> DaemonConfig:
    return DaemonConfig(model=tiny_model, ctx=2048, lanes=4, threads=1, log_level="warn")


@pytest.fixture
async def process(luced: Path, config: DaemonConfig) -> AsyncIterator[EngineProcess]:
    async with await EngineProcess.spawn(luced, config) as running:
        await running.wait_ready(timeout_s=60)
        yield running


@pytest.fixture
async def client(process: EngineProcess) -> AsyncIterator[EngineClient]:
    async with EngineClient(process) as connected:
        yield connected
