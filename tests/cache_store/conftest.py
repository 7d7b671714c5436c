"""What the tests of the cache store share: supervisors on folders of their own, a real S3 server, and a proxy before it
that breaks what passes."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from yarl import URL

from luce.supervisor import FinishedEvent, GenerateRequest, Supervisor, SupervisorConfig, TokenEvent
from luce.supervisor.cache_store.stored_files import StoreCounts
from luce.supervisor.requests import TextSalt
from luce.supervisor.scheduling.prices import EnginePrices
from tests.daemon_driver import random_prompt

DEADLINE_S = 120.0
BUCKET = "memory"
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The emulator's own, which its documentation names."""

Replica = Callable[..., SupervisorConfig]


@pytest.fixture(autouse=True)
def reading_is_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is with large models. Other work on this machine decides then over nothing."""
    monkeypatch.setattr(EnginePrices, "read_s", lambda _, n_tokens: float(n_tokens))


@pytest.fixture
def replica(tiny_model: Path, tmp_path: Path) -> Replica:
    """replica(name, store=URL, …): what a server of its own would be made with."""

    def make(name: str, *, store: str | None, **more: Any) -> SupervisorConfig:
        return SupervisorConfig(
            model=tiny_model,
            ctx=4096,
            lanes=1,
            threads=1,
            no_warmup=True,
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


async def ask_later(
    supervisor: Supervisor, prompt: Sequence[int], holds: Callable[[], bool], salt: TextSalt | None = None
) -> Told:
    """The prompt waits in the queue until that holds."""
    async with lane_taken(supervisor):
        asked = asyncio.create_task(ask(supervisor, prompt, salt))
        await until(holds)
    return await asked


# Real stores


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


@contextmanager
def served(command: list[str], make_bucket: urllib.request.Request) -> Iterator[None]:
    """A store that runs, with an empty bucket."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until_s = time.monotonic() + DEADLINE_S
        while True:
            with suppress(OSError):
                urllib.request.urlopen(make_bucket, timeout=10).close()  # noqa: S310
                break
            assert server.poll() is None, f"{command[0]} did not start"
            assert time.monotonic() < until_s
        yield
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    """Where moto's server listens."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with served(command, urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")):
        yield port


@pytest.fixture(scope="module")
def azure_port() -> Iterator[int]:
    """Where Microsoft's emulator listens, if there is one."""
    emulator = shutil.which("azurite-blob")
    if emulator is None:
        pytest.skip("there is no azurite-blob in the path (npm install -g azurite)")
    port = free_port()
    command = [emulator, "--inMemoryPersistence", "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"]
    command += ["--skipApiVersionCheck", "--disableTelemetry"]
    resource, version = f"/{AZURE_ACCOUNT}/{BUCKET}", "2021-08-06"
    date = formatdate(usegmt=True)
    signed = (
        "PUT" + 12 * "\n" + f"x-ms-date:{date}\nx-ms-version:{version}\n/{AZURE_ACCOUNT}{resource}\nrestype:container"
    )
    signature = base64.b64encode(hmac.digest(base64.b64decode(AZURE_KEY), signed.encode(), "sha256")).decode()
    headers = {
        "x-ms-date": date,
        "x-ms-version": version,
        "Authorization": f"SharedKey {AZURE_ACCOUNT}:{signature}",
        "Content-Length": "0",
    }
    url = f"http://127.0.0.1:{port}{resource}?restype=container"
    with served(command, urllib.request.Request(url, method="PUT", headers=headers)):
        yield port


class FaultyProxy:
    """Passes requests on to an S3 server, and does to what it reads of objects what `fault` says."""

    def __init__(self, port: int) -> None:
        self._target = f"http://127.0.0.1:{port}"
        self.fault = "none"
        self.n_hit = self.n_looks = 0
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
        self._client = ClientSession(auto_decompress=False, skip_auto_headers=["Content-Type"])  # it would be signed
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
        self.n_hit += hits
        self.n_looks += is_object and request.method == "HEAD"
        if hits and self.fault in {"error", "list"}:
            return web.Response(status=500, text="no")
        if hits and self.fault == "reset":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if hits and self.fault == "slow":
            await self.lets_go.wait()
        headers = request.headers.copy()
        del headers["Host"]
        if headers.get("Authorization", "Bearer").strip() == "Bearer":  # of Google's clients; S3 servers want a name
            headers["Authorization"] = _SOMEBODY
        body = await request.read()
        url = URL(self._target + request.raw_path, encoded=True)
        async with self._client.request(request.method, url, headers=headers, data=body or None) as answer:
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


_SOMEBODY = "AWS4-HMAC-SHA256 Credential=any/20200101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
_PER_HOP = {"content-length", "transfer-encoding", "connection", "content-encoding", "date", "server"}


Cloud = Callable[[str], AbstractAsyncContextManager[tuple[str, FaultyProxy]]]


@pytest.fixture
def cloud(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """cloud("s3"): a URL for a store of the test's own, and the proxy that it goes through."""

    def use_s3(endpoint: str) -> None:
        own = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "us-east-1"}
        for name, value in (own | {"AWS_ENDPOINT_URL": endpoint}).items():
            monkeypatch.setenv(name, value)

    def use_google(endpoint: str) -> None:
        """What its client asks for S3 servers know too, but for who asks."""
        account = {"gcs_base_url": endpoint, "disable_oauth": True}
        account |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        (tmp_path / "account.json").write_text(json.dumps(account))
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "account.json"))

    def use_azure(endpoint: str) -> None:
        monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
        monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", endpoint)

    kinds = {"s3": ("s3_port", use_s3), "gs": ("s3_port", use_google), "az": ("azure_port", use_azure)}

    @asynccontextmanager
    async def serve(kind: str) -> AsyncIterator[tuple[str, FaultyProxy]]:
        port, use = kinds[kind]
        proxy = FaultyProxy(request.getfixturevalue(port))
        async with proxy.serve() as endpoint:
            use(endpoint)
            yield f"{kind}://{BUCKET}/{time.monotonic_ns()}", proxy

    return serve


@pytest.fixture
async def s3(cloud: Cloud) -> AsyncIterator[tuple[str, FaultyProxy]]:
    async with cloud("s3") as store:
        yield store
