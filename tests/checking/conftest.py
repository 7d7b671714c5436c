"""What the tests of `luce check` share: a run of one check with small texts, by the real luced or one with a fault."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from luce.supervisor.checking.checks import CHECKS, run_checks
from luce.supervisor.checking.engines import Answer, EngineStarter, Tally
from luce.supervisor.checking.finding import Finding
from luce.supervisor.checking.subject import Subject, Volume
from luce.supervisor.checking.texts import CheckText, Texts
from luce.supervisor.config import DaemonConfig
from luce.supervisor.text import TextModel
from tests.checking.faulty_luced import N_SEEDS

SHIM = Path(__file__).with_name("faulty_luced.py")
VOLUME = Volume(lengths=(256,), n_answer=12, n_seeds=N_SEEDS, n_sampled=1, n_positions=12, n_turns=2, most_kl=0.0008)
N_CTX = 1024
NOISE = 0.3

RunCheck = Callable[..., Awaitable[list[Finding]]]


@pytest.fixture(scope="module")
def texts(tiny_model: Path) -> Iterator[Texts]:
    with TextModel(tiny_model) as model:
        yield Texts(model, model.n_vocab)


@pytest.fixture(scope="module")
def references() -> dict[CheckText, Answer]:
    """The real, plain engine's, by the first test that wants them."""
    return {}


@pytest.fixture
def run_check(
    luced: Path,
    tiny_model: Path,
    packaged_draft: Path,
    tmp_path: Path,
    texts: Texts,
    references: dict[CheckText, Answer],
) -> RunCheck:
    """run_check("reuse", fault="NothingReused"): its findings."""

    async def run(
        name: str,
        *,
        fault: str | None = None,
        volume: Volume = VOLUME,
        outside: str | None = None,
        tally: Tally | None = None,
    ) -> list[Finding]:
        binary = luced
        if fault is not None:
            binary = tmp_path / "faulty-luced"
            binary.write_text(f'#!/bin/sh\nexec {sys.executable} -S {SHIM} {fault} {luced} "$@"\n')
            binary.chmod(0o755)
        draft = packaged_draft if name == "drafter" else None
        config = DaemonConfig(
            model=tiny_model,
            draft=draft,
            threads=1,
            no_warmup=True,
            log_level="error",
            flash_attn="on",
            host_cache_type=outside,
        )
        starter = EngineStarter(binary, config, tally=tally or Tally())
        subject = Subject(starter, texts, volume, N_CTX, volume.lengths, tmp_path, NOISE, references)
        found: list[Finding] = []
        await run_checks(subject, [check for check in CHECKS if check.name == name], found)
        return found

    return run
