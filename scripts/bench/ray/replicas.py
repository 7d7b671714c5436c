#!/usr/bin/env python3
"""What replicas behind Ray Serve cost against one server, both of the packaged model on this machine.

\b
read      agents with one system prompt, turn by turn: tokens of prompts that were read anew, by one big server, by
          replicas with our router, and by replicas of which two are drawn
first     the first token of a short prompt: one replica through the ingress' own port against the server
streams   tokens a second of many streams at once, the same two

\b
    scripts/bench/ray/replicas.py read first streams
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import click
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from scripts.bench.harness import Ratio, in_turns, write_json  # noqa: E402
from scripts.bench.servers import ServerProcess, free_port  # noqa: E402

PARTS = ("read", "first", "streams")
ENGINE = {"ctx": 8192, "pool": 65536, "lanes": 8, "threads": 1, "draft_max": 0, "seed": 1, "log_level": "error"}
WORDS = ("red", "blue", "one", "two", "who", "are", "you", "the", "sum", "of", "all", "that", "was", "said", "before")
TIMEOUT = aiohttp.ClientTimeout(total=600)


@contextmanager
def one_server(**engine: Any) -> Iterator[str]:
    port = free_port()
    options = [f"--{name.replace('_', '-')}={value}" for name, value in {**ENGINE, **engine, "port": port}.items()]
    with ServerProcess([str(Path(sys.executable).parent / "luce"), "serve", *options], port) as server:
        yield server.url


@contextmanager
def ray_replicas(n_replicas: int, *, router: str = "price", **engine: Any) -> Iterator[str]:
    port = free_port()
    args = {
        "luce": {**ENGINE, **engine, "port": port},
        "replicas": n_replicas,
        "router": router,
        "router_seed": 1,
        "stride": 64,  # the agents' texts are short
        "stats_period_s": 5.0,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "scripts.bench.ray.local_cluster", json.dumps({"args": args})],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not any(line.strip() == "ready" for line in process.stdout):
            raise click.ClickException(f"Ray ended before it was ready, with status {process.wait()}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stdin.close()
        process.wait(300)


def text(seed: int, n_words: int) -> str:
    return " ".join(WORDS[(seed * 31 + number * number * 7 + number) % len(WORDS)] for number in range(n_words))


async def tokens_read_anew(url: str, n_agents: int, n_turns: int) -> int:
    """Of all prompts of all agents, each of which sends its next turn as soon as it has its answer."""
    system = text(0, 150)

    async def agent(session: aiohttp.ClientSession, number: int) -> int:
        messages = [{"role": "system", "content": system}]
        n_read = 0
        for turn in range(n_turns):
            messages.append({"role": "user", "content": f"{number} {text(100 * number + turn + 1, 40)}"})
            body = {"messages": messages, "max_tokens": 32, "temperature": 0, "prompt_cache_key": f"agent {number}"}
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                answer = await response.json()
            if response.status != 200:
                raise click.ClickException(str(answer))
            usage = answer["usage"]
            n_read += usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"] or ""})
        return n_read

    async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
        return sum(await asyncio.gather(*(agent(session, number) for number in range(n_agents))))


async def first_token_s(session: aiohttp.ClientSession, url: str, number: int) -> float:
    body = {"prompt": f"{number} who are you", "max_tokens": 1, "temperature": 0, "stream": True}
    began_s = time.perf_counter()
    async with session.post(f"{url}/v1/completions", json=body) as response:
        async for line in response.content:
            if line.startswith(b"data: ") and b'"text"' in line:
                took_s = time.perf_counter() - began_s
                await response.read()
                return took_s
    raise click.ClickException("an answer without a token")


async def tokens_per_s(url: str, n_streams: int, n_tokens: int) -> float:
    async def one(session: aiohttp.ClientSession, number: int) -> None:
        body = {"prompt": f"{number} who", "max_tokens": n_tokens, "temperature": 0, "stream": True, "ignore_eos": True}
        async with session.post(f"{url}/v1/completions", json=body) as response:
            async for _ in response.content.iter_any():
                pass

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=TIMEOUT, connector=connector) as session:
        began_s = time.perf_counter()
        await asyncio.gather(*(one(session, number) for number in range(n_streams)))
        return n_streams * n_tokens / (time.perf_counter() - began_s)


def measure_read(options: dict[str, Any]) -> dict[str, int]:
    found = {}
    sizes = options["agents"], options["turns"]
    with one_server() as url:
        found["one server"] = asyncio.run(tokens_read_anew(url, *sizes))
    for name, router in (("ours", "price"), ("two choices", "two_choices")):
        with ray_replicas(options["replicas"], router=router) as url:
            found[name] = asyncio.run(tokens_read_anew(url, *sizes))
    return found


async def measure_first(urls: Sequence[str], n_pairs: int) -> list[list[float]]:
    async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
        found: list[list[float]] = [[], []]
        for turn in range(n_pairs + 5):
            for side in in_turns((0, 1), turn):
                took_s = await first_token_s(session, urls[side], turn)
                if turn >= 5:  # the first ones open connections
                    found[side].append(took_s)
        return found


async def measure_streams(urls: Sequence[str], options: dict[str, Any]) -> list[list[float]]:
    found: list[list[float]] = [[], []]
    for turn in range(options["pairs"] + 1):
        for side in in_turns((0, 1), turn):
            speed = await tokens_per_s(urls[side], options["streams"], options["tokens"])
            if turn > 0:
                found[side].append(speed)
    return found


@click.command(help=__doc__, context_settings={"show_default": True, "max_content_width": 110})
@click.argument("parts", nargs=-1, type=click.Choice(PARTS))
@click.option("--replicas", type=click.IntRange(min=1), default=3, help="of `read`")
@click.option("--agents", type=click.IntRange(min=1), default=8)
@click.option("--turns", type=click.IntRange(min=1), default=10)
@click.option("--streams", type=click.IntRange(min=1), default=64)
@click.option("--tokens", type=click.IntRange(min=1), default=64, help="of each stream")
@click.option("--pairs", type=click.IntRange(min=1), default=5, help="of runs of `streams`")
@click.option("--firsts", type=click.IntRange(min=1), default=200, help="pairs of requests of `first`")
@click.option("--json", "file", type=click.Path(path_type=Path), metavar="FILE")
def main(parts: tuple[str, ...], file: Path | None, **options: Any) -> None:
    chosen, console = parts or PARTS, Console()
    found: dict[str, object] = {}
    table = Table("what", "one server", "Ray", "ratio or difference")
    if "read" in chosen:
        found["read"] = read = measure_read(options)
        for name in ("ours", "two choices"):
            n_one = read["one server"]
            table.add_row(f"read anew, {name}", f"{n_one:,}", f"{read[name]:,}", f"{read[name] / n_one:.3f}")
    if {"first", "streams"} & set(chosen):
        lanes = {"lanes": options["streams"], "pool": 65536, "ctx": 1024}
        with one_server(**lanes) as server, ray_replicas(1, **lanes) as replicas:
            if "first" in chosen:
                found["first"] = firsts = asyncio.run(measure_first((server, replicas), options["firsts"]))
                for name, at in (("median", 0.5), ("least tenth", 0.1)):  # the latter on a machine that is not idle
                    one, ray = (1000 * sorted(side)[int(at * len(side))] for side in firsts)
                    table.add_row(f"first token, {name}, ms", f"{one:.2f}", f"{ray:.2f}", f"+{ray - one:.2f}")
            if "streams" in chosen:
                found["streams"] = speeds = asyncio.run(measure_streams((server, replicas), options))
                one, ray = (statistics.median(side) for side in speeds)
                ratio = Ratio.of([b / a for a, b in zip(*speeds, strict=True)])
                table.add_row(f"{options['streams']} streams, tok/s", f"{one:,.0f}", f"{ray:,.0f}", str(ratio))
    console.print(table)
    if file is not None:
        write_json(file, found)


if __name__ == "__main__":
    main()
