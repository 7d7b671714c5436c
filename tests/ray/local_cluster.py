"""A Ray cluster on this machine for tests, as a process of its own, and streams of what it serves."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 600.0
ENGINE, INGRESS, RAYLET = "EngineReplica", "Ingress", "raylet"
N_TOKENS = 400


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        port: int = tried.getsockname()[1]
        return port


class NotDeployedError(Exception):
    """Serve has given it up; the text is Serve's."""


@dataclass
class LocalCluster:
    process: subprocess.Popen[str]
    url: str
    proxy_url: str
    args: dict[str, Any]

    def add_node(self) -> None:
        self._say("node")
        self.expect("node")

    def deploy(self, **luce: Any) -> None:
        """A new version, with other options of the server. Raises NotDeployedError."""
        self.args["luce"] |= luce
        self._say(f"args {json.dumps(self.args)}")
        self.expect("ready")

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def expect(self, word: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == word:
                return
            if line.startswith("failed "):
                raise NotDeployedError(json.loads(line.removeprefix("failed ")))
        pytest.fail(f"the cluster ended before it said {word}: {self.process.wait()}")

    def pids(self, what: str) -> list[int]:
        """Of this cluster's own processes alone; the oldest first."""
        found = []
        for one in psutil.process_iter(["pid", "cmdline", "environ", "create_time"]):
            command = " ".join(one.info["cmdline"] or [])
            is_it = (
                command.split(" ")[0].endswith("/raylet") if what == RAYLET else f"ServeReplica:luce:{what}" in command
            )
            if is_it and (one.info["environ"] or {}).get("LUCE_TEST_CLUSTER") == str(os.getpid()):
                found.append((one.info["create_time"], one.info["pid"]))
        return [pid for _, pid in sorted(found)]


@contextmanager
def local_cluster(nodes: int = 0, **args: Any) -> Iterator[LocalCluster]:
    port, proxy_port = free_port(), free_port()
    luce = {"ctx": 4096, "pool": 16384, "lanes": 8, "threads": 1, "draft_max": 0, "port": port, "log_level": "warn"}
    asked: dict[str, Any] = {
        "nodes": nodes,
        "proxy": args.pop("proxy", "Disabled"),
        "proxy_port": proxy_port,
        "args": {**args, "luce": luce | args.pop("luce", {})},
    }
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # its sockets' paths are long
    environment = {**os.environ, "LUCE_TEST_CLUSTER": str(os.getpid()), "RAY_TMPDIR": folder}
    process = subprocess.Popen(
        [sys.executable, "-m", "scripts.bench.ray.local_cluster", json.dumps(asked)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=ROOT,
    )
    cluster = LocalCluster(process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{proxy_port}", asked["args"])
    try:
        cluster.expect("ready")
        yield cluster
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
        for pid in [*cluster.pids(RAYLET), *cluster.pids(ENGINE), *cluster.pids(INGRESS)]:
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


class BrokenError(Exception):
    """A stream that its client knows to be broken."""


async def stream(url: str, body: dict[str, Any], on_piece: Callable[[int], None] = lambda _: None) -> str:
    """The text of a streamed completion; `on_piece` hears how many pieces there are. Raises BrokenError."""
    text, n_pieces = "", 0
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(f"{url}/v1/completions", json={**body, "stream": True}) as response,
        ):
            if response.status != 200:
                raise BrokenError(f"{response.status}: {await response.text()}")
            async for line in response.content:
                if line == b"data: [DONE]\n":
                    return text
                if line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise BrokenError(str(event["error"]))
                    text += "".join(choice["text"] for choice in event["choices"])
                    n_pieces += 1
                    on_piece(n_pieces)
    except aiohttp.ClientError as error:
        raise BrokenError(repr(error)) from error
    raise BrokenError("the stream ended without its end")


def body_of(seed: int) -> dict[str, Any]:
    words = random.Random(seed).choices(["red", "blue", "one", "two", "who", "are", "you", "the", "sum"], k=120)
    prompt = f"{seed} {' '.join(words)}"
    return {"prompt": prompt, "max_tokens": N_TOKENS, "temperature": 0.7, "seed": seed, "ignore_eos": True}


async def until_served(url: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                await stream(url, {"prompt": "Hello", "max_tokens": 1})
            except BrokenError:
                await asyncio.sleep(0.2)
            else:
                return
