#!/usr/bin/env python3
"""The first token of a replica that has just started, with and without an object store, and the tokens that it reads.

    scripts/bench/memory/travel.py [--model M.gguf] [--tokens 8192] [--store URL] [--rounds 3]

One server reads a conversation and leaves. Then fresh servers, each with an empty disk cache, are asked to go on with
it: one by itself and one with the store in turns. The answers have to be the same.
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
PACKAGED = Path(__file__).resolve().parents[3] / "models" / "luce-tiny-Q8_0.gguf"


@dataclass(frozen=True)
class Answer:
    first_token_s: float
    n_read: int
    tokens: tuple[int, ...]


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


async def measure(arguments: argparse.Namespace, folder: Path) -> None:
    rng = random.Random(1)
    prompt = [rng.randrange(LOWEST_ID, HIGHEST_ID) for _ in range(arguments.tokens)]
    more = [*prompt, *(rng.randrange(LOWEST_ID, HIGHEST_ID) for _ in range(32))]
    store = arguments.store or (folder / "store").as_uri()

    def config(name: str, url: str | None) -> SupervisorConfig:
        n_ctx = 2 * arguments.tokens
        return SupervisorConfig(
            model=arguments.model, ctx=n_ctx, lanes=1, log_level="warn", disk_cache=folder / name, cache_store=url
        )

    async with Supervisor(config("first", store)) as first:
        await ask(first, prompt)
    answers: dict[str, list[Answer]] = {"without": [], "with": []}
    for number in range(arguments.rounds):
        for name, url in (("without", None), ("with", store)):
            async with Supervisor(config(f"{name} {number}", url)) as fresh:
                answers[name].append(await ask(fresh, more))
    show(answers)


def show(answers: dict[str, list[Answer]]) -> None:
    table = Table("store", "first token, s", "tokens read", title="a fresh replica goes on with a conversation")
    for name, told in answers.items():
        first_token_s = statistics.median(answer.first_token_s for answer in told)
        table.add_row(name, f"{first_token_s:.3f}", f"{statistics.median(answer.n_read for answer in told):,.0f}")
    Console().print(table)
    without, with_store = (statistics.median(answer.first_token_s for answer in told) for told in answers.values())
    same = len({answer.tokens for told in answers.values() for answer in told}) == 1
    print(f"{without / with_store:.1f} times sooner; answers {'are the same' if same else 'DIFFER'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=PACKAGED)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--store", help="s3://…, gs://…, az://…, file://…; default: a folder of its own")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(arguments, Path(folder)))


if __name__ == "__main__":
    main()
