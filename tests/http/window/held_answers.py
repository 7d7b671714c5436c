"""Answers that are in the middle for as long as a test wants: however slow the browser is, they do not end before."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.http.serving import CALL_S, Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

# No drafts: an answer that repeats itself would be over at once. And an engine that is stopped is waited for.
HELD: dict[str, Any] = {"draft_max": 0, "stopped_timeout_s": 600.0, "final_timeout_s": 600.0}
N_BEGUN = 16
"""Tokens."""


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Server]:
    running = Server(tiny_model, HELD)
    try:
        yield running.start()
    finally:
        running.stop()


@contextmanager
def in_mid_answer(server: Server, page: Page, ask: Callable[[], None]) -> Iterator[None]:
    """`ask` makes the page ask for an answer that is long and has commas. The block begins when the page shows some of
    it, and the engine stands still until the block is left. REQUIRES: a server with one engine, started with HELD."""
    (pid,) = server.supervisor.engine_pids()

    async def n_tokens() -> int:
        (status,) = await server.supervisor.engine_status(CALL_S)
        return int(status["tokens_out"])

    async def hold(at: int) -> None:
        while await n_tokens() < at:  # noqa: ASYNC110  the count is the engine's
            await asyncio.sleep(0.001)
        os.kill(pid, signal.SIGSTOP)

    held = asyncio.run_coroutine_threadsafe(hold(server.call(n_tokens) + N_BEGUN), server.loop)
    try:
        ask()
        held.result(CALL_S)
        page.wait_for_selector(".message.live .body:has-text(',')")
        yield
    finally:
        held.cancel()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
