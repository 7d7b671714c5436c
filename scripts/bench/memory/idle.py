#!/usr/bin/env python3
"""Measure what texts that are only cached cost the one that runs: its prompt and its answer with so many cells of idle
texts beside it in the pool, against the same with none, in one daemon and in turns.

Reported, pair by pair: the prompt's time and the time of a token beside each volume, as ratios to those beside none;
the first tokens after the prompt apart from the rest, and how many cells a computation looked at. Aim: 1.0 throughout.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.table import Table

from luce.protocol import Token

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from scripts.bench.harness import Ratio, luced_arguments, options_of, parser_of, write_json
from tests.daemon.exactness import done, status_of
from tests.daemon_driver import DaemonDriver, gen_line, random_prompt


@dataclass(frozen=True)
class Sample:
    n_idle: int
    prompt_s: float
    first_token_gap_s: float
    """Of the first --early tokens, each."""
    token_gap_s: float
    """Of the rest."""
    n_spanned: int


def fill(daemon: DaemonDriver, n_idle: int, n_text: int, seed: int) -> None:
    """Texts that end at once and stay."""
    for i in range(-(-n_idle // n_text)):
        daemon.send(gen_line(1, 1, random_prompt(n_text, seed=seed * 1000 + i), "ignore_eos=1"))
        daemon.tokens_until_end()
        daemon.next_ok()


def measure(daemon: DaemonDriver, args: argparse.Namespace, n_idle: int, seed: int) -> Sample:
    done(daemon, "CLEAR")
    fill(daemon, n_idle, args.text, seed)
    prompt = random_prompt(args.prompt, seed=seed * 1000 + 999)
    started_s = monotonic()
    daemon.send(gen_line(1, args.tokens, prompt, "ignore_eos=1"))
    times_s = [started_s]
    while isinstance(daemon.next_token(), Token):
        times_s.append(monotonic())
    daemon.next_ok()
    early_s, rest_s = times_s[1 : args.early + 2], times_s[args.early + 1 :]
    return Sample(
        n_idle, times_s[1] - started_s, (early_s[-1] - early_s[0]) / (len(early_s) - 1),
        (rest_s[-1] - rest_s[0]) / (len(rest_s) - 1), int(status_of(daemon)["cells_spanned"]),
    )  # fmt: skip


def report(console: Console, volumes: Sequence[int], pairs: list[dict[int, Sample]]) -> None:
    table = Table(title=f"beside idle texts, against beside none: median (range) of {len(pairs)} pairs")
    for name in ("idle cells", "prompt", "first tokens", "other tokens", "cells spanned"):
        table.add_column(name, justify="right")
    for n_idle in volumes:
        cells = [str(n_idle)]
        for figure in ("prompt_s", "first_token_gap_s", "token_gap_s"):
            ratios = [getattr(pair[n_idle], figure) / getattr(pair[volumes[0]], figure) for pair in pairs]
            cells.append(str(Ratio.of(ratios)))
        table.add_row(*cells, str(max(pair[n_idle].n_spanned for pair in pairs)))
    console.print(table)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--idle", type=lambda text: [int(n) for n in text.split(",")], default=[0, 65536, 262144],
                        metavar="N,…", help="cells of idle texts; compared with the first volume")  # fmt: skip
    parser.add_argument("--text", type=int, default=8192, help="tokens of each idle text")
    parser.add_argument("--prompt", type=int, default=8192, help="tokens of the measured one's prompt")
    parser.add_argument("--tokens", type=int, default=300, help="tokens of its answer")
    parser.add_argument("--early", type=int, default=150, help="of these, the first ones")
    parser.add_argument("--host-cache", default="0", help="as luced's option; 0: all that stays is in the pool")
    parser.add_argument("--pairs", type=int, default=3)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse_arguments(arguments)
    console = Console(width=None if sys.stdout.isatty() else 120)
    n_ctx = -(-(max(args.prompt, args.text) + args.tokens + 1) // 256) * 256
    n_pool = -(-(max(args.idle) + args.text) // 256) * 256 + n_ctx
    more = ("--flash-attn", "on", "--draft-max", "0", "--host-cache", args.host_cache)
    pairs: list[dict[int, Sample]] = []
    with DaemonDriver(args.luced, args.model, *luced_arguments(args, 4, n_ctx, n_pool), *more) as daemon:
        measure(daemon, args, 0, 0)
        for i in range(args.pairs):
            volumes = args.idle if i % 2 == 0 else args.idle[::-1]
            pairs.append({n_idle: measure(daemon, args, n_idle, 1 + i) for n_idle in volumes})
            samples = [[asdict(sample) for sample in pair.values()] for pair in pairs]
            write_json(args.json, {"options": options_of(args), "samples": samples})
    report(console, args.idle, pairs)


if __name__ == "__main__":
    main()
