"""What the daemon's tests share: how to start one, and reference answers with their margins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from luce.protocol import Logprobs
from tests.daemon_driver import DaemonDriver

Start = Callable[..., DaemonDriver]


@pytest.fixture
def start(luced: Path, tiny_model: Path) -> Iterator[Start]:
    """start(*arguments, mux=…, stream=…, model=…, warm_up=…): a daemon that is ready; ended after the test. Hundreds of
    starts measure nothing first, unless they say so."""
    drivers: list[DaemonDriver] = []

    def start_one(
        *arguments: str, mux: bool = True, stream: bool = True, model: Path = tiny_model, warm_up: bool = False
    ) -> DaemonDriver:
        has_drafts = "--embedding" not in arguments
        first = ("--threads", "1", *(("--no-warmup",) if has_drafts and not warm_up else ()))
        driver = DaemonDriver(luced, model, *first, *arguments, mux=mux, stream=stream)
        drivers.append(driver)
        driver.ready = driver.expect_ready()
        return driver

    yield start_one
    for driver in drivers:
        driver.close()


def margins_of(logprobs: Sequence[Logprobs]) -> list[float]:
    """The best logit's lead at each step, from `logprobs=2`: chosen, best, second."""
    return [line.entries[1][1] - line.entries[2][1] for line in logprobs]
