"""Mixed clients with two keys that share no cache, cancels, broken connections and kills of the engine, for a while:
afterwards nothing of them is left.

`--full` goes on for 30 minutes. What is counted is the server's own process and its engine's memory, in another process
than the clients'.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from aiohttp import ClientError, ClientSession, ClientTimeout

from tests.http.raw_client import post, raw_client

SHORT_S, FULL_S = 6.0, 1800.0
KILLS_SHORT_S, KILLS_FULL_S = 4.0, 30.0  # between two kills
N_CLIENTS = 6
GROWTH_BYTES = 24 << 20
DEADLINE_S = 600.0  # for what hangs: on two cores that thirty programs share, an answer over several kills took 111 s
N_POOL_THREADS = min(32, (os.cpu_count() or 1) + 4)
"""asyncio begins a thread whenever its others are busy, up to so many, and keeps it."""
KEYS = ("mine", "yours")
N_TEXTS = 200
"""Different ones: of each new text caches keep something, up to bounds that only hours reach."""
TOPICS = ("light", "a bug", "a program", "dark", "a file", "the answer", "seven", "a cat")


# The fields of the APIs whose streams can be taken up again, and what stands in the last event of each.
RESUMABLE = {
    "/v1/chat/completions": ("messages", "max_tokens"),
    "/v1/messages": ("messages", "max_tokens"),
    "/v1/completions": ("prompt", "max_tokens"),
    "/v1/responses": ("input", "max_output_tokens"),
}
END = re.compile(r"data: \[DONE\]|event: message_stop|event: response\.(completed|incomplete)")


@dataclass(frozen=True)
class Soaked:
    url: str
    process: psutil.Process

    def engine(self) -> psutil.Process:
        """The one that runs now."""
        return next(child for child in self.process.children() if "luced" in child.name())

    def figures(self) -> dict[str, int]:
        return {
            "descriptors": self.process.num_fds(),
            "threads": self.process.num_threads(),
            "children": len(self.process.children(recursive=True)),
        }


@contextmanager
def serving(model: Path, folder: Path) -> Iterator[Soaked]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LUCE_API")}
    options = {
        "--model": model, "--ctx": 2048, "--pool": 8192, "--lanes": 4, "--threads": 1, "--port": 0,
        "--host-cache": "32M", "--disk-cache": folder / "cache", "--disk-budget": "64M", "--log-level": "warn",
        "--api-key-file": folder / "keys", "--cache-isolation": "key",
    }  # fmt: skip
    (folder / "keys").write_text("\n".join(KEYS))
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-c", "from luce.supervisor.cli.app import main; main()", "serve",
             *(str(word) for option in options.items() for word in option)],
            stdout=subprocess.PIPE, stderr=log, text=True, env=environment,
        )  # fmt: skip
        assert child.stdout is not None
        try:
            url = next(word for line in child.stdout for word in line.split() if word.startswith("http://"))
            yield Soaked(url, psutil.Process(child.pid))
        finally:
            child.terminate()
            child.stdout.close()
            assert child.wait(DEADLINE_S) == 0, (folder / "log").read_text()[-4000:]


def chat(rng: random.Random, **fields: Any) -> dict[str, Any]:
    words = random.Random(rng.randrange(N_TEXTS))
    text = " ".join(words.choice(TOPICS) for _ in range(words.choice((1, 40, 300))))
    n_most = words.choice((1, 20, 200))
    return {"max_tokens": n_most, "temperature": 0, "messages": [{"role": "user", "content": text}], **fields}


async def asks(soaked: Soaked, session: ClientSession, rng: random.Random) -> None:
    path = rng.choice(("/v1/chat/completions", "/v1/messages", "/v1/chat/completions/input_tokens"))
    async with session.post(soaked.url + path, json=chat(rng)) as answer:
        assert answer.status == 200, await answer.text()


async def streams(soaked: Soaked, session: ClientSession, rng: random.Random) -> None:
    async with session.post(f"{soaked.url}/v1/chat/completions", json=chat(rng, stream=True)) as answer:
        assert answer.status == 200, await answer.text()
        assert (await answer.text()).endswith("data: [DONE]\n\n")


async def leaves(soaked: Soaked, session: ClientSession, rng: random.Random) -> None:
    """In the middle of an answer."""
    body = chat(rng, stream=True, ignore_eos=True)
    async with session.post(f"{soaked.url}/v1/chat/completions", json=body) as answer:
        await answer.content.readany()


async def breaks_off(soaked: Soaked, session: ClientSession, rng: random.Random) -> None:
    del session
    async with raw_client(soaked.url, receive_buffer=2048) as client:
        key = f"x-api-key: {rng.choice(KEYS)}\r\n"
        request = post("/v1/chat/completions", chat(rng, stream=True), headers=key)
        await client.send(request[: rng.choice((len(request), rng.randrange(1, len(request))))])
        client.vanish()


async def comes_back(soaked: Soaked, session: ClientSession, rng: random.Random) -> None:
    name, path = f"conv-{rng.randrange(1 << 30)}", rng.choice(tuple(RESUMABLE))
    said, most = RESUMABLE[path]
    headers, ask = {"X-Conversation-Id": name}, {"conv_id": name}
    asked = chat(rng)
    (message,) = asked["messages"]
    body = {
        said: [message] if said == "messages" else message["content"],
        most: asked["max_tokens"],
        "stream": True,
        "temperature": 0,
    }
    async with session.post(soaked.url + path, json=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        await answer.content.readany()
    async with session.get(f"{soaked.url}/v1/stream", params=ask) as answer:
        text = await answer.text()
        assert END.search(text.rstrip().rpartition("\n\n")[2]), f"{path}: {text[-500:]}"
    async with session.delete(f"{soaked.url}/v1/stream", params=ask) as answer:
        assert answer.status == 204


async def is_refused(soaked: Soaked, session: ClientSession, rng: random.Random) -> None:
    body = rng.choice((b"{", b"[]", b'{"messages": 5}', b'{"messages": [], "n": 1e9}'))
    async with session.post(f"{soaked.url}/v1/chat/completions", data=body) as answer:
        assert answer.status == 400


Client = Callable[[Soaked, ClientSession, random.Random], Awaitable[None]]
CLIENTS: tuple[Client, ...] = (asks, streams, leaves, breaks_off, comes_back, is_refused)


def session_of(key: str) -> ClientSession:
    return ClientSession(timeout=ClientTimeout(total=DEADLINE_S), headers={"x-api-key": key})


async def soak(soaked: Soaked, seconds: float, kills_s: float, seed: int) -> int:
    """How many requests there were."""
    end_s, n_requests = time.monotonic() + seconds, 0

    async def work(number: int) -> None:
        nonlocal n_requests
        rng = random.Random(seed * 1000 + number)
        async with session_of(KEYS[number % len(KEYS)]) as session:
            while time.monotonic() < end_s:
                await CLIENTS[rng.randrange(len(CLIENTS))](soaked, session, rng)
                n_requests += 1

    async def kill() -> None:
        while time.monotonic() + kills_s < end_s:
            await asyncio.sleep(kills_s)
            with suppress(StopIteration, psutil.NoSuchProcess):
                soaked.engine().send_signal(signal.SIGKILL)

    async with asyncio.TaskGroup() as group:
        group.create_task(kill())
        for number in range(N_CLIENTS):
            group.create_task(work(number))
    return n_requests


async def settled(soaked: Soaked) -> dict[str, Any]:
    """What /status.json says once nothing is at work and the engine is back."""
    async with asyncio.timeout(DEADLINE_S), session_of(KEYS[0]) as session:
        while True:
            with suppress(ClientError):
                async with session.get(f"{soaked.url}/status.json") as answer:
                    status: dict[str, Any] = await answer.json()
                (engine,) = status["engines"]
                if status["waiting"] == 0 and not engine["running"] and engine["state"] == "ready":
                    return status
            await asyncio.sleep(0.05)


async def until_no_more_than(soaked: Soaked, before: dict[str, int]) -> None:
    """Connections that were reset are noticed soon, and not at once."""
    most = {**before, "threads": before["threads"] + N_POOL_THREADS}
    async with asyncio.timeout(DEADLINE_S):
        while any(now > most[name] for name, now in soaked.figures().items()):  # noqa: ASYNC110  another process's
            await asyncio.sleep(0.05)


async def no_half_written_file(folder: Path) -> None:
    """The engine may still be writing; what one that was killed left goes when the next one starts."""
    async with asyncio.timeout(DEADLINE_S):
        while list(folder.rglob("*.tmp-*")):  # noqa: ASYNC110, ASYNC240  another process's; a small folder
            await asyncio.sleep(0.05)


async def test_nothing_is_left_of_them(tiny_model: Path, tmp_path: Path, full: bool) -> None:
    seconds, kills_s = (FULL_S, KILLS_FULL_S) if full else (SHORT_S, KILLS_SHORT_S)
    with serving(tiny_model, tmp_path) as soaked:
        await soak(soaked, seconds / 3, kills_s, seed=1)  # until caches and pools have their size
        await settled(soaked)
        before, bytes_before = soaked.figures(), soaked.process.memory_info().rss
        n_requests = await soak(soaked, seconds, kills_s, seed=2)
        status = await settled(soaked)
        await until_no_more_than(soaked, before)
        grown = soaked.process.memory_info().rss - bytes_before
        after = soaked.figures()
        assert grown < GROWTH_BYTES, f"{grown:,} bytes more after {n_requests} requests"
        assert status["engines"][0]["deaths"] > 0
        assert status["requests"]["failed"] == 0
        figures = status["engines"][0]["figures"]
        assert (figures["lanes_busy"], figures["queued"]) == (0, 0)
        assert figures["host_bytes"] <= 32 << 20
        cache_bytes = sum(file.stat().st_size for file in (tmp_path / "cache").rglob("*") if file.is_file())
        assert cache_bytes < (64 + 48) << 20, "its budget, and the answers beside it"
        await no_half_written_file(tmp_path / "cache")
        kept = f"{figures['host_bytes']:,} bytes in the host, {cache_bytes:,} on disk"
        n_kills = status["engines"][0]["deaths"]
        print(f"{n_requests} requests, {n_kills} kills: {grown:+,} bytes, {kept}, {before} {after}")
