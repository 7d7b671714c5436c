"""Servers for the tests of the HTTP side: one that a module shares, and special ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.http.serving import Server

MakeServer = Callable[..., AbstractAsyncContextManager[Server]]


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Server]:
    """A server over the packaged model: `url`, `supervisor`, `settings`."""
    running = Server(tiny_model, {})
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture(scope="module")
def tagged(tiny_model: Path, llama_templates_dir: Path) -> Iterator[Server]:
    """Calls of this template are written in tags, behind a thought."""
    running = Server(tiny_model, {"chat_template": llama_templates_dir / "Qwen3.5-4B.jinja"})
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def make_server(tiny_model: Path) -> MakeServer:
    """`async with make_server(lanes=1, api_keys=("key",)) as server`: fields of ServeSettings and SupervisorConfig."""

    @asynccontextmanager
    async def make(**options: Any) -> AsyncIterator[Server]:
        running = Server(options.pop("model", tiny_model), options)
        try:
            yield await asyncio.to_thread(running.start)
        finally:
            await asyncio.to_thread(running.stop)

    return make


@pytest.fixture
def sdk(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
async def async_sdk(server: Server) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client
