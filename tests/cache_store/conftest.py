"""What the tests of the cache store share: supervisors on folders of their own, a real S3 server, and a proxy before it
that breaks what passes."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from luce.supervisor import FinishedEvent, GenerateRequest, Supervisor, SupervisorConfig, TokenEvent
from luce.supervisor.cache_store.stored_files import StoreCounts
from luce.supervisor.requests import TextSalt
from tests.daemon_driver import random_prompt

DEADLINE_S = 120.0
BUCKET = "memory"

Replica = Callable[..., SupervisorConfig]


@pytest.fixture
def replica(tiny_model: Path, tmp_path: Path) -> Replica:
    """replica(name, store=URL, …): what a server of its own would be made with."""

    def make(name: str, *, store: str | None, **more: Any) -> SupervisorConfig:
        return SupervisorConfig(
            model=tiny_model,
            ctx=4096,
            lanes=1,
            threads=1,
            log_level="warn",
            disk_cache=tmp_path / name,
            cache_store=store,
            **more,
        )

    return make


def text(number: int, n_tokens: int = 300) -> list[int]:
    return random_prompt(n_tokens, seed=1000 + number)


@dataclass(frozen=True)
class Told:
    tokens: tuple[int, ...]
    final: FinishedEvent


async def ask(supervisor: Supervisor, prompt: Sequence[int], salt: TextSalt | None = None) -> Told:
    request = GenerateRequest(prompt_ids=prompt, max_tokens=8, temperature=0.0, ignore_eos=True, salt=salt)
    tokens: list[int] = []
    async with asyncio.timeout(DEADLINE_S):
        async for event in supervisor.generate(request):
            if isinstance(event, TokenEvent):
                tokens.append(event.token)
            elif isinstance(event, FinishedEvent):
                return Told(tuple(tokens), event)
    raise AssertionError("it did not end")


async def written(supervisor: Supervisor, n_tokens: int) -> None:
    """Returns once the pages of so many tokens are in the store, and nothing waits."""
    store = supervisor.status
    await until(lambda: counts_of(supervisor).n_written >= n_tokens // 64 and store().cache_stores[0].n_waiting == 0)


def counts_of(supervisor: Supervisor) -> StoreCounts:
    return supervisor.status().cache_stores[0].counts


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110  what is looked at are figures that the test does not set
            await asyncio.sleep(0.01)


@asynccontextmanager
async def lane_taken(supervisor: Supervisor) -> AsyncIterator[None]:
    """Nothing else is begun meanwhile: the one lane has an answer without end."""
    request = GenerateRequest(prompt_ids=[7, 8, 9], max_tokens=3000, ignore_eos=True, reuse=False)
    submission = await supervisor.submit(request)
    try:
        await submission.begun()
        yield
    finally:
        submission.close()


async def ask_later(supervisor: Supervisor, prompt: Sequence[int], holds: Callable[[], bool]) -> Told:
    """The prompt waits in the queue until that holds."""
    async with lane_taken(supervisor):
        asked = asyncio.create_task(ask(supervisor, prompt))
        await until(holds)
    return await asked


# A real S3


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    """Where moto's server listens, with an empty bucket."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until_s = time.monotonic() + DEADLINE_S
        while True:
            with suppress(OSError):
                make = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
                urllib.request.urlopen(make, timeout=10).close()  # noqa: S310
                break
            assert server.poll() is None, "moto's server did not start"
            assert time.monotonic() < until_s
        yield port
    finally:
        server.kill()
        server.wait()


class FaultyProxy:
    """Passes requests on to an S3 server, and does to what it reads of objects what `fault` says."""

    def __init__(self, port: int) -> None:
        self._target = f"http://127.0.0.1:{port}"
        self.fault = "none"
        self.n_hit = 0
        self.lets_go = asyncio.Event()
        self.other: bytes | None = None
        """Of an object that was read before."""

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self._client = ClientSession(auto_decompress=False)
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            self.lets_go.set()
            await self._client.close()
            await runner.cleanup()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        is_object = request.path.endswith((".page", ".tail"))
        hits = self.fault != "none" and (
            is_object if self.fault != "list" else not is_object and request.method == "GET"
        )
        if hits:
            self.n_hit += 1
        if hits and self.fault in {"error", "list"}:
            return web.Response(status=500, text="no")
        if hits and self.fault == "reset":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if hits and self.fault == "slow":
            await self.lets_go.wait()
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        body = await request.read()
        url = self._target + request.raw_path
        async with self._client.request(request.method, url, headers=headers, data=body) as answer:
            data = await answer.read()
            if is_object and request.method == "GET" and answer.status == 200:
                data = self._changed(data) if hits else data
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _PER_HOP}
            if request.method == "HEAD":
                kept["Content-Length"] = answer.headers.get("Content-Length", "0")
            return web.Response(status=answer.status, body=data, headers=kept)

    def _changed(self, data: bytes) -> bytes:
        before, self.other = self.other, data
        match self.fault:
            case "flip":
                return bytes([data[0] ^ 1]) + data[1:]
            case "cut":
                return data[:-1]
            case "swap" if before is not None:
                return before
        return data


_PER_HOP = {"content-length", "transfer-encoding", "connection", "content-encoding", "date", "server"}


@pytest.fixture
async def s3(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, FaultyProxy]]:
    """A URL for a store of the test's own, and the proxy that it goes through."""
    proxy = FaultyProxy(s3_port)
    async with proxy.serve() as endpoint:
        for name, value in {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        yield f"s3://{BUCKET}/{time.monotonic_ns()}", proxy
