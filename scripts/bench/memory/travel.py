#!/usr/bin/env python3
"""The first token of a replica that has just started, with and without an object store, and the tokens that it reads.

    scripts/bench/memory/travel.py [--model M.gguf] [--tokens 600 4096 …] [--store URL] [--rounds 3] [--warm]

One server reads a conversation and leaves. Then fresh servers, each with an empty disk cache, are asked to go on with
it: one by itself and one with the store in turns, each pair on in another way. The answers of a pair have to be the
same. With `--warm` each has read another text before, so that it reads in large steps and knows its prices.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from luce.supervisor import FinishedEvent, GenerateRequest, Supervisor, SupervisorConfig, TokenEvent

LOWEST_ID, HIGHEST_ID = 300, 4000  # ordinary tokens of every model that is measured
N_MORE, N_BEFORE = 32, 2048
PACKAGED = Path(__file__).resolve().parents[3] / "models" / "luce-tiny-Q8_0.gguf"


@dataclass(frozen=True)
class Answer:
    first_token_s: float
    n_read: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    alone: Answer
    store: Answer


async def ask(supervisor: Supervisor, prompt: Sequence[int]) -> Answer:
    began_s = time.perf_counter()
    first_token_s, tokens = 0.0, []
    request = GenerateRequest(prompt_ids=prompt, max_tokens=16, temperature=0.0, ignore_eos=True)
    async for event in supervisor.generate(request):
        if isinstance(event, TokenEvent):
            first_token_s = first_token_s or time.perf_counter() - began_s
            tokens.append(event.token)
        elif isinstance(event, FinishedEvent):
            return Answer(first_token_s, event.n_prompt - event.n_reused, tuple(tokens))
    raise SystemExit("the answer did not end")


async def measure(arguments: argparse.Namespace, folder: Path, n_tokens: int) -> list[Pair]:
    rng = random.Random(n_tokens)
    prompt = [rng.randrange(LOWEST_ID, HIGHEST_ID) for _ in range(n_tokens)]
    store = arguments.store or (folder / "store").as_uri()

    def config(name: str, url: str | None) -> SupervisorConfig:
        return SupervisorConfig(
            model=arguments.model,
            ctx=2 * max(n_tokens, N_BEFORE),
            lanes=1,
            log_level="warn",
            disk_cache=folder / name,
            cache_store=url,
        )

    async def ask_fresh(name: str, url: str | None, prompt: Sequence[int]) -> Answer:
        async with Supervisor(config(name, url)) as fresh:
            if arguments.warm:
                await ask(fresh, [rng.randrange(LOWEST_ID, HIGHEST_ID) for _ in range(N_BEFORE)])
            return await ask(fresh, prompt)

    async with Supervisor(config("first", store)) as first:
        await ask(first, prompt)
    pairs = []
    for number in range(arguments.rounds):
        more = [*prompt, *(rng.randrange(LOWEST_ID, HIGHEST_ID) for _ in range(N_MORE))]
        without = await ask_fresh(f"without {number}", None, more)
        pairs.append(Pair(without, await ask_fresh(f"with {number}", store, more)))
    return pairs


def show(told: dict[int, list[Pair]]) -> None:
    table = Table(
        *("known tokens", "first token without, s", "with, s", "ratio", "of pairs", "read without", "with", "answers"),
        title="a fresh replica goes on with a conversation",
    )
    for n_tokens, pairs in told.items():
        ratios = [pair.store.first_token_s / pair.alone.first_token_s for pair in pairs]
        n_other = sum(pair.store.tokens != pair.alone.tokens for pair in pairs)
        table.add_row(
            f"{n_tokens:,}",
            f"{statistics.median(pair.alone.first_token_s for pair in pairs):.3f}",
            f"{statistics.median(pair.store.first_token_s for pair in pairs):.3f}",
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f} .. {max(ratios):.2f}",
            f"{statistics.median(pair.alone.n_read for pair in pairs):,.0f}",
            f"{statistics.median(pair.store.n_read for pair in pairs):,.0f}",
            "the same" if n_other == 0 else f"{n_other} DIFFER",
        )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=PACKAGED)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192])
    parser.add_argument("--store", help="s3://…, gs://…, az://…, file://…; default: a folder of its own")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", action="store_true", help="each server has read another text before")
    arguments = parser.parse_args()
    told = {}
    for n_tokens in arguments.tokens:
        with tempfile.TemporaryDirectory() as folder:
            told[n_tokens] = asyncio.run(measure(arguments, Path(folder), n_tokens))
    show(told)


if __name__ == "__main__":
    main()
