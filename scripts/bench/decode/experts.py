#!/usr/bin/env python3
"""A mixture whose experts do not fit: luced with a share of them on the GPU, by each way that there is, against all of
them there. One line a way and share, as it goes:

  bank      --expert-memory: the most used ones on the GPU, the others read by the GPU from the host's memory
  layers    --n-cpu-moe: whole layers' experts on the host, computed by the processor
  cache     --cpu-moe --moe-cache-mib: llama.cpp's cache of experts used lately

All get the same bytes of the GPU for experts. Before anything is measured each has answered --warm tokens, from which
the bank and the cache learn. Nothing but Python's own library and gguf is needed.

    experts.py --luced L --model M --gpu-layers 99 --shares 60,30 --ways bank,layers,cache --json OUT

With --ctx N another comparison, of a card with room for the whole context and a share of the experts: a bank that has
its memory for good, against one that has that of the cache's empty cells as well (--fit). Decoding with an empty
context, reading a prompt that fills half of it, decoding behind that, and decoding a short text once the bank has its
memory back.

    experts.py --luced L --model M --ctx 131072 --shares 30 --json OUT
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import sleep

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from scripts.bench.decode.answers import ask
from scripts.bench.harness import luced_arguments, options_of, parser_of, write_json
from tests.daemon_driver import DaemonDriver, random_prompt

HEAD = (
    "| way | experts on the GPU | decode | of all | 8 lanes | of all | prefill | of all | hits |\n" + "|---" * 9 + "|"
)


CONTEXT_HEAD = (
    "| experts | on the GPU | decode, empty | prompt | decode behind it | on the GPU then | decode, given back |\n"
    + "|---" * 7
    + "|"
)


@dataclass(frozen=True)
class ContextRates:
    """Tokens a second, and how many experts were on the GPU."""

    experts: int
    resident: int
    empty: float
    prompt: float
    deep: float
    resident_deep: int
    given_back: float


@dataclass(frozen=True)
class Rates:
    """Tokens a second, and the share of experts that the GPU had, where luced counts it."""

    decode: float
    lanes: float
    prefill: float
    hits: float | None = None


@dataclass(frozen=True)
class Mixture:
    n_layers: int
    expert_bytes: int

    @classmethod
    def read(cls, path: Path) -> Mixture:
        from gguf import GGUFReader

        experts = [t for t in GGUFReader(path).tensors if "_exps.weight" in t.name]
        layers = {t.name.split(".")[1] for t in experts}
        return cls(len(layers), sum(int(t.n_bytes) for t in experts))


def arguments_of(way: str, share: float, mixture: Mixture) -> list[str]:
    n_bytes = round(share * mixture.expert_bytes)
    match way:
        case "bank":
            return ["--expert-memory", str(n_bytes)]
        case "layers":
            return ["--n-cpu-moe", str(round((1 - share) * mixture.n_layers)), "--no-mmap"]
        case "cache":
            return ["--cpu-moe", "--moe-cache-mib", str(n_bytes >> 20), "--no-mmap"]
        case _:
            return []


def counters(daemon: DaemonDriver) -> tuple[int, int]:
    daemon.send("status")
    line = dict(daemon.next_reply().fields)  # type: ignore[union-attr]
    return int(line.get("expert_hits", 0)), int(line.get("expert_misses", 0))


def let_settle(daemon: DaemonDriver) -> None:
    """Until an idle engine moves no more experts."""
    seen, now = -1, 0
    while now != seen:
        sleep(1.0)
        daemon.send("status")
        seen, now = now, int(dict(daemon.next_reply().fields).get("expert_exchanges", 0))  # type: ignore[union-attr]


def measure(args: argparse.Namespace, extra: Sequence[str]) -> Rates:
    n_ctx = -(-(args.prompt + args.tokens + 128) // 256) * 256
    n_pool = -(-max(n_ctx, args.lanes * (512 + args.tokens + 64)) // 256) * 256
    arguments = [*luced_arguments(args, args.lanes, n_ctx, n_pool), "--flash-attn", "on", "--draft-max", "0"]
    if extra and extra[0] == "--expert-memory":  # it wants to be told nothing else
        at = arguments.index("--gpu-layers")
        del arguments[at : at + 2]
    with DaemonDriver(args.luced, args.model, *arguments, *extra, log_level="info") as daemon:
        lanes = [random_prompt(512, 100 + i) for i in range(args.lanes)]
        for i in range(2):
            ask(daemon, [random_prompt(args.prompt, 10 + i)], 2)
        ask(daemon, [random_prompt(64, 1)], args.warm)
        ask(daemon, lanes, args.tokens)
        let_settle(daemon)
        before = counters(daemon)
        decode = max(ask(daemon, [random_prompt(64, 20 + i)], args.tokens).decode for i in range(3))
        after = counters(daemon)
        many = max(ask(daemon, lanes, args.tokens).decode for _ in range(2))
        prefill = max(ask(daemon, [random_prompt(args.prompt, 30 + i)], 2).prefill for i in range(3))
    n_hits, n_misses = (b - a for a, b in zip(before, after, strict=True))
    return Rates(decode, many, prefill, n_hits / (n_hits + n_misses) if n_hits + n_misses else None)


def with_context(args: argparse.Namespace) -> list[str]:
    arguments = luced_arguments(args, 1, args.ctx, args.ctx)
    at = arguments.index("--gpu-layers")  # a plan wants to be told nothing of it
    del arguments[at : at + 2]
    return [*arguments, "--flash-attn", "on", "--draft-max", "0"]


def planned(args: argparse.Namespace, gpu_bytes: int) -> dict[str, str]:
    command = [args.luced, "--model", args.model, "--log-level", "error", *with_context(args), "--reserve-gpu", "0",
               "--plan", "--plan-gpus", str(gpu_bytes)]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    return dict(part.split("=", 1) for part in said.split()[1:])


def card_of(args: argparse.Namespace, share: float, mixture: Mixture) -> tuple[int, int]:
    """Bytes of a card that has room for all but the experts and for so many of these, and bytes of those."""
    names = ("gpu_weights", "gpu_cache", "gpu_compute", "gpu_beside")
    guess = planned(args, round((0.5 + share) * mixture.expert_bytes))
    fixed = int(guess["expert_memory"]) - int(guess["expert_lendable"])
    n_bytes = round(share * mixture.expert_bytes)
    return sum(int(guess[name]) for name in names) - fixed + n_bytes, n_bytes


def status_of(daemon: DaemonDriver) -> dict[str, str]:
    daemon.send("status")
    return dict(daemon.next_reply().fields)  # type: ignore[union-attr]


def measure_context(args: argparse.Namespace, extra: Sequence[str]) -> ContextRates:
    with DaemonDriver(args.luced, args.model, *with_context(args), *extra, log_level="info") as daemon:
        short = [random_prompt(64, 20)]

        def decode() -> float:
            let_settle(daemon)
            return max(ask(daemon, short, args.tokens).decode for _ in range(3))

        ask(daemon, short, args.warm)
        empty, before = decode(), status_of(daemon)
        long = ask(daemon, [random_prompt(args.ctx // 2, 30)], args.tokens)
        then = status_of(daemon)
        ask(daemon, short, 2000)  # so long that cells which are not needed go
        return ContextRates(
            int(before["experts"]), int(before["experts_resident"]), empty,
            long.prefill, long.decode, int(then["experts_resident"]), decode(),
        )  # fmt: skip


def compare_contexts(args: argparse.Namespace, mixture: Mixture) -> None:
    print(f"{args.model.name}: a context of {args.ctx}\n\n{CONTEXT_HEAD}")
    found = []
    for percent in map(float, args.shares.split(",")):
        card, n_bytes = card_of(args, percent / 100, mixture)
        fixed = ["--expert-memory", str(n_bytes)]
        shared = ["--fit", "on", "--gpu-memory", str(card), "--reserve-gpu", "0"]
        for name, extra in (("fixed", fixed), ("shared", shared)):
            rates = measure_context(args, extra)
            found.append({"way": name, "percent": percent, **asdict(rates)})
            print(f"| {name}, {percent:.0f} % | {rates.resident / rates.experts:.3f} | {rates.empty:.1f} |"
                  f" {rates.prompt:.0f} | {rates.deep:.1f} | {rates.resident_deep / rates.experts:.3f} |"
                  f" {rates.given_back:.1f} |", flush=True)  # fmt: skip
    write_json(args.json, {"options": options_of(args), "found": found})


def main() -> None:
    parser = parser_of(__doc__, ubatch=2048)
    parser.add_argument("--ctx", type=int, metavar="N")
    parser.add_argument("--shares", default="60,30", metavar="PERCENT,…")
    parser.add_argument("--ways", default="bank,layers,cache", metavar="WAY,…")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--warm", type=int, default=3000, metavar="TOKENS")
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--lanes", type=int, default=8)
    args = parser.parse_args()
    mixture = Mixture.read(args.model)
    if args.ctx:
        compare_contexts(args, mixture)
    else:
        compare_ways(args, mixture)


def compare_ways(args: argparse.Namespace, mixture: Mixture) -> None:
    print(f"{args.model.name}: {mixture.n_layers} layers, {mixture.expert_bytes >> 20} MiB of experts\n\n{HEAD}")
    cases = [("all", 100.0)] + [(way, float(s)) for s in args.shares.split(",") for way in args.ways.split(",")]
    found = []
    for way, percent in cases:
        rates = measure(args, arguments_of(way, percent / 100, mixture))
        found.append({"way": way, "percent": percent, **asdict(rates)})
        of_all = found[0]
        cells = [f"{rates.decode:.1f}", f"{rates.decode / of_all['decode']:.2f}",
                 f"{rates.lanes:.0f}", f"{rates.lanes / of_all['lanes']:.2f}",
                 f"{rates.prefill:.0f}", f"{rates.prefill / of_all['prefill']:.2f}",
                 "" if rates.hits is None else f"{rates.hits:.3f}"]  # fmt: skip
        print(f"| {way} | {percent:.0f} % | {' | '.join(cells)} |", flush=True)
    write_json(args.json, {"options": options_of(args), "found": found})


if __name__ == "__main__":
    main()
