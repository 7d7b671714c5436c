#!/usr/bin/env python3
"""Measure what HTTP costs: `luce serve` against `luced` itself, and against llama-server, side by side in one run.

Three things, each with its aim. (1) CPU time of the server's own process (not the engine's) for each token, with
--streams answers at once, at their prefix and from token 3,500 to 4,000: at most 120 us. (2) Tokens a second of so
many streams through HTTP against the same through luced's own channels: at least 0.95. (3) Time to the first token of a
single request against luced's: within 3 ms. The sides take turns, pair by pair; reported are medians and ranges.

All sides run the same model with the same threads, cache types and prompts' lengths, and begin each request with a
prompt that none of them has seen. (1) runs on the packaged model, whose tokens come fast, and late in an answer on a
model with next to no attention, whose tokens come fast there, too; (2) and (3) on --model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic

from gguf import GGUFReader, TokenType

from luce.protocol import Token
from luce.supervisor.engine.locate import find_luced

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from scripts.bench.harness import (
    TINY,
    in_turns,
    llama_server_arguments,
    luced_arguments,
    model_path,
    parser_of,
    write_json,
)
from scripts.bench.http.load import Passed, burst, stream
from scripts.bench.servers import LlamaServer, LuceServer
from tests.daemon_driver import DaemonDriver, gen_line

LONG, LONG_FROM = 4000, 3500
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


class PromptMaker:
    """Prompts of the same length that begin differently, as ids and as texts."""

    def __init__(self, n_tokens: int) -> None:
        self._n_tokens = n_tokens
        self._rng = random.Random(20)

    def ids(self) -> list[int]:
        return [self._rng.randrange(300, 1500) for _ in range(self._n_tokens)]

    def text(self) -> str:
        return "".join(f" {self._rng.choice('abcdefgh')}{self._rng.randrange(10)}" for _ in range(self._n_tokens // 3))


@dataclass(frozen=True)
class CpuSample:
    at: str
    us_per_token: float
    tokens_per_s: float


def special_ids(model: Path) -> list[int]:
    """Control tokens and the like: a random text that happens to open a tool call would be held back from there on."""
    kinds = GGUFReader(model).fields["tokenizer.ggml.token_type"].contents()
    return [i for i, kind in enumerate(kinds) if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)]


async def measure_cpu(server: LuceServer, args: argparse.Namespace, n_tokens: int, skip: int) -> CpuSample:
    """Over the tokens from `skip` of each stream on, to the end of the run."""
    prompts = PromptMaker(args.prompt)
    bias = {str(token): -100 for token in special_ids(server.model)}
    bodies = [
        {"model": "luce", "max_tokens": n_tokens, "ignore_eos": True, "temperature": 1.0, "seed": seed,
         "logit_bias": bias, "messages": [{"role": "user", "content": prompts.text()}]}
        for seed in range(args.streams)
    ]  # fmt: skip
    passed = Passed()
    running = asyncio.create_task(burst(server.url, CHAT, bodies, passed))
    seen = [(0, monotonic(), server.cpu_s())]
    while not running.done():
        await asyncio.wait([running], timeout=0.05)
        seen.append((passed.n_events, monotonic(), server.cpu_s()))
    streamed = await running
    # How many tokens an event carries is known at the end only.
    n_events, began_s, cpu_s = next(at for at in seen if at[0] >= passed.n_events * skip / n_tokens)
    n_measured = streamed.n_tokens * (1 - n_events / passed.n_events)
    _, ended_s, ended_cpu_s = seen[-1]
    at = f"{skip} .. {n_tokens} of {server.model.stem}"
    return CpuSample(at, (ended_cpu_s - cpu_s) / n_measured * 1e6, n_measured / (ended_s - began_s))


def luced_burst(daemon: DaemonDriver, args: argparse.Namespace, prompts: PromptMaker) -> float:
    """Tokens a second of so many generations."""
    daemon.send(*(gen_line(i, args.tokens, prompts.ids(), "ignore_eos=1") for i in range(args.streams)))
    first_s: float | None = None
    n_tokens, n_open = 0, args.streams
    while n_open:
        event = daemon.next_token(600)
        if isinstance(event, Token):
            first_s = first_s or monotonic()
            n_tokens += 1
        else:
            n_open -= 1
    ended_s = monotonic()
    for _ in range(args.streams):
        daemon.next_ok()
    assert first_s is not None
    return n_tokens / (ended_s - first_s)


def luced_first_token(daemon: DaemonDriver, ids: list[int]) -> float:
    began_s = monotonic()
    daemon.send(gen_line(1, 2, ids, "ignore_eos=1"))
    daemon.next_token(600)
    seconds = monotonic() - began_s
    daemon.tokens_until_end()
    daemon.next_ok()
    return seconds


def http_burst(url: str, args: argparse.Namespace, prompts: PromptMaker) -> float:
    bodies = [
        {"model": "luce", "prompt": prompts.ids(), "max_tokens": args.tokens, "ignore_eos": True, "temperature": 0}
        for _ in range(args.streams)
    ]
    result = asyncio.run(burst(url, TEXT, bodies))
    if result.n_tokens != args.tokens * args.streams:
        raise RuntimeError(f"{result.n_tokens} tokens came, not {args.tokens} in each of {args.streams} streams")
    return result.tokens_per_s


def http_first_token(url: str, prompts: PromptMaker, word: int) -> float:
    """The first token is made to be a word: what is half a character has no text of its own yet."""
    body = {"model": "luce", "prompt": prompts.ids(), "max_tokens": 2, "ignore_eos": True, "temperature": 0,
            "logit_bias": {str(word): 100}}  # fmt: skip
    streamed = asyncio.run(stream(url, TEXT, body))
    return streamed.first_token_s - streamed.began_s


def find_word(url: str) -> int:
    request = urllib.request.Request(  # noqa: S310  ours
        f"{url}/tokenize", json.dumps({"content": " the"}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310  ours
        return int(json.load(response)["tokens"][-1])


Side = tuple[str, Callable[[], float]]
Samples = dict[str, list[float]]


def measure_in_turns(sides: Sequence[Side], n_pairs: int) -> Samples:
    """Each side once a pair; the first pair warms up and does not count."""
    found: Samples = {name: [] for name, _ in sides}
    for i in range(n_pairs + 1):
        for name, measure in in_turns(sides, i):
            value = measure()
            if i > 0:
                found[name].append(value)
    return found


def engine_arguments(args: argparse.Namespace, n_ctx: int) -> list[str]:
    return luced_arguments(args, args.streams, n_ctx, n_ctx * args.streams)


def cells(args: argparse.Namespace, n_tokens: int) -> int:
    return int(-(-(args.prompt + n_tokens + 128) // 256) * 256)


async def cpu_figures(args: argparse.Namespace) -> list[CpuSample]:
    samples = []
    if not args.skip_cpu:
        with LuceServer(TINY, engine_arguments(args, cells(args, 512))) as server:
            await measure_cpu(server, args, 32, 0)
            samples += [await measure_cpu(server, args, 400, 20) for _ in range(args.rounds)]
    if not args.skip_long:
        # Random answers repeat themselves; drafted from what came before, many tokens would be one event.
        arguments = [*engine_arguments(args, cells(args, LONG)), "--draft-max", "0"]
        with LuceServer(model_path("bench-answers"), arguments) as server:
            await measure_cpu(server, args, 32, 0)
            samples.append(await measure_cpu(server, args, 400, 20))
            samples.append(await measure_cpu(server, args, LONG, LONG_FROM))
    return samples


def side_figures(args: argparse.Namespace) -> tuple[Samples, Samples]:
    arguments = engine_arguments(args, cells(args, args.tokens))
    n_cells = cells(args, args.tokens) * args.streams
    with ExitStack() as stack:
        server = stack.enter_context(LuceServer(args.model, arguments))
        daemon = stack.enter_context(DaemonDriver(args.luced, args.model, *arguments))
        urls = {"luce serve": server.url}
        if args.vs is not None:
            theirs = LlamaServer(args.vs, args.model, *llama_server_arguments(args, args.streams, n_cells))
            urls["llama-server"] = stack.enter_context(theirs).url
        prompts, word = PromptMaker(args.prompt), find_word(server.url)
        rate: list[Side] = [("luced", partial(luced_burst, daemon, args, prompts))]
        delay: list[Side] = [("luced", lambda: luced_first_token(daemon, prompts.ids()))]
        for name, url in urls.items():
            rate.append((name, partial(http_burst, url, args, prompts)))
            delay.append((name, partial(http_first_token, url, prompts, word)))
        rates, delays = measure_in_turns(rate, args.pairs), measure_in_turns(delay, args.pairs * 5)
    return rates, delays


def spread(values: Sequence[float], digits: int) -> str:
    return f"**{statistics.median(values):.{digits}f}** ({min(values):.{digits}f} .. {max(values):.{digits}f})"


def report_cpu(args: argparse.Namespace, cpu: Sequence[CpuSample]) -> None:
    if cpu:
        print(f"| {args.streams} streams: tokens | server's CPU, us a token | tokens/s |")
        print("|---|---|---|")
        for at in dict.fromkeys(sample.at for sample in cpu):
            samples = [sample for sample in cpu if sample.at == at]
            rate = statistics.median(sample.tokens_per_s for sample in samples)
            print(f"| {at} | {spread([sample.us_per_token for sample in samples], 1)} | {rate:.0f} |")
        print()


def report_sides(args: argparse.Namespace, rates_of: Samples, delays_of: Samples) -> None:
    print(f"| {args.model.stem} | tokens/s, {args.streams} streams | of luced's | first token, ms | ms after luced's |")
    print("|---|---|---|---|---|")
    ours, ours_s = rates_of["luced"], delays_of["luced"]
    for name, rates in rates_of.items():
        ratios = [a / b for a, b in zip(rates, ours, strict=True)]
        first_s = delays_of[name]
        later_ms = [(a - b) * 1e3 for a, b in zip(first_s, ours_s, strict=True)]
        print(
            f"| {name} | {statistics.median(rates):.1f} | {spread(ratios, 3)} "
            f"| {statistics.median(first_s) * 1e3:.2f} | {spread(later_ms, 2)} |"
        )


def parse_arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, model="bench-150m", has_peer=True)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3, help="of the CPU figure")
    parser.add_argument("--prompt", type=int, default=64, help="prompt tokens")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each stream in the comparison")
    parser.add_argument("--skip-cpu", action="store_true", help="leave the first figure out")
    parser.add_argument("--skip-long", action="store_true", help="leave out what a token costs at token 4,000")
    parser.add_argument("--skip-sides", action="store_true", help="leave the comparison out")
    parser.set_defaults(luced=find_luced())
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    cpu = asyncio.run(cpu_figures(args))
    report_cpu(args, cpu)
    rates, delays = ({}, {}) if args.skip_sides else side_figures(args)
    if rates:
        report_sides(args, rates, delays)
    write_json(args.json, {"cpu": [vars(sample) for sample in cpu], "tokens_per_s": rates, "first_token_s": delays})


if __name__ == "__main__":
    main()
