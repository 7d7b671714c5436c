#!/usr/bin/env python3
"""Measure what a token costs the supervisor: CPU time of this process for each token that its callers get.

A real luced with the packaged model, as many streams as lanes, each read by a task of its own. Whatever the callers do
with a token is not in it; starting and ending the requests is. Aim: 40 us at 32 streams. The second figure is the CPU
that supervisor and engine use while nothing runs. Aim: 0.5 % for the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from luce.supervisor import FinishedEvent, GenerateRequest, Supervisor, SupervisorConfig, TokenEvent

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Sample:
    n_tokens: int
    cpu_s: float
    wall_s: float

    @property
    def cpu_us_per_token(self) -> float:
        return self.cpu_s / self.n_tokens * 1e6


async def read_one(supervisor: Supervisor, seed: int, n_tokens: int) -> int:
    n_read = 0
    request = GenerateRequest(
        prompt_ids=[329, 285, 1420 + seed], max_tokens=n_tokens, ignore_eos=True, temperature=1.0, seed=seed
    )
    async for event in supervisor.generate(request):
        if isinstance(event, TokenEvent):
            n_read += 1
        elif isinstance(event, FinishedEvent):
            assert event.n_generated == n_tokens == n_read
    return n_read


async def measure(supervisor: Supervisor, n_streams: int, n_tokens: int) -> Sample:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    counts = await asyncio.gather(*(read_one(supervisor, seed, n_tokens) for seed in range(n_streams)))
    return Sample(sum(counts), time.process_time() - cpu_s, time.perf_counter() - wall_s)


async def measure_idle(supervisor: Supervisor, seconds: float) -> tuple[float, float]:
    """Per cent of a core that the supervisor and its engine use."""
    (pid,) = supervisor.engine_pids()
    engine = psutil.Process(pid)

    def engine_s() -> float:
        times = engine.cpu_times()
        return float(times.user + times.system)

    cpu_s, engine_cpu_s = time.process_time(), engine_s()
    await asyncio.sleep(seconds)
    return (time.process_time() - cpu_s) / seconds * 100, (engine_s() - engine_cpu_s) / seconds * 100


async def run(args: argparse.Namespace) -> None:
    config = SupervisorConfig(
        model=args.model, lanes=args.streams, ctx=1024, pool=1024 * args.streams, threads=1, log_level="error"
    )
    async with Supervisor(config) as supervisor:
        await measure(supervisor, args.streams, 16)
        samples = [await measure(supervisor, args.streams, args.tokens) for _ in range(args.rounds)]
        supervisor_idle, engine_idle = await measure_idle(supervisor, args.idle)
    costs = [sample.cpu_us_per_token for sample in samples]
    rate = statistics.median(sample.n_tokens / sample.wall_s for sample in samples)
    print("| streams | tokens/s | supervisor's CPU, us a token, median (range) | idle: supervisor, engine |")
    print("|---|---|---|---|")
    print(
        f"| {args.streams} | {rate:.0f} | **{statistics.median(costs):.1f}** ({min(costs):.1f} .. {max(costs):.1f}) "
        f"| {supervisor_idle:.2f} %, {engine_idle:.2f} % |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "luce-tiny-Q8_0.gguf")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle", type=float, default=20.0, metavar="S")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
