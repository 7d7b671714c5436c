#!/usr/bin/env python3
"""Measure luced's bounded KV residency (--kv-offload): what a token costs far beyond the pool, and what is still found.

Recall: prompts with one needle each, a code that the end asks for, in four surroundings (among sentences, in a comment
of Python, among three other codes, five turns ago) at depths of 10 to 90 percent. Each prompt goes, in turns, to luced
with the whole text in its cells ("full"), to luced with --kv-offload that keeps what is asked for ("query"), with
--scorer to one that lets a small model say what that is ("draft"), and to one that keeps the newest ("lru"). The answer
is generated, and right if it holds the code. At a residency of R percent of N tokens the pool has the first page, four
recent ones, a slice (--ubatch) and R percent of N, in whole pages. A needle is outside the window if it lies further
from the end than the pool is long. Counts, so a busy machine does no harm.

Flatness: random texts of growing length (--positions) and answers of --answer tokens: time a decoded token with a pool
of --pool tokens ("bounded"), over that of the same daemon at the pool's own length ("home": the last 64 tokens of
another text that just fits it, again and again), and over that of luced with all of it in its cells ("whole"). The
three take turns, and the first turn at each position, which reads what is new of the text, is left out of decoding; it
says what a token of the prompt costs there. Stalls are the part of decoding that waited for pages or looked for what
matters. These are times: run it where nothing else runs.

Aims: recall with query at least 95 percent of the full cache's at 12 percent, 88 at 6; next to none with lru outside
its window; decoding within 5 percent of home's at every
position; stalls under 2 percent of decoding at tau 64.

  residency.py --quick                                   does it work at all? some minutes on two cores
  residency.py --only recall                             the full volumes: 40 needles a kind and residency
  residency.py --only flatness --model MODEL.gguf --pool 4096 --ubatch 512 --positions 8192 32768 65536

Recall is only worth something on a model that finds the needles with its whole text in sight: look at "full".
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from luce.supervisor.config import engine_environment
from scripts.bench.harness import make_quick, options_of, parser_of, write_json
from scripts.bench.residency.flatness import SIDES as FLATNESS_SIDES
from scripts.bench.residency.flatness import WHOLE, FlatnessSample, FlatnessVolume, measure_flatness
from scripts.bench.residency.prompts import KINDS
from scripts.bench.residency.recall import (
    RecallSample,
    Residency,
    least_tokens,
    measure_recall,
)
from scripts.bench.residency.report import (
    flatness_rows,
    recall_rows,
    show_flatness,
    show_recall,
    to_json,
    verdicts,
)
from scripts.bench.residency.sides import LRU, EngineSettings

PARTS = ("recall", "flatness")
QUICK = {"needles": 2, "residency": [25], "positions": [2048, 4096], "rounds": 2, "answer": 128}


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, has_quick=True, ubatch=64)
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=PARTS)
    recall = parser.add_argument_group("recall")
    recall.add_argument("--needles", type=int, default=40, metavar="N",
                        help="so many a kind and residency")  # fmt: skip
    recall.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS),
                        help="; ".join(f"{name}: {what}" for name, what in KINDS.items()))  # fmt: skip
    recall.add_argument("--residency", type=int, nargs="+", default=[25, 12, 6], metavar="PERCENT")
    recall.add_argument("--tokens", type=int, metavar="N",
                        help="length of the prompts (default: the least that says something: 2048 at 25 percent, "
                        "4096 at 12, 7168 at 6)")  # fmt: skip
    recall.add_argument("--scorer", type=Path, metavar="GGUF",
                        help="a small model: also measure --kv-offload-policy draft with it")  # fmt: skip
    recall.add_argument("--seed", type=int, default=0, help="other texts, owners and codes")
    flatness = parser.add_argument_group("flatness")
    flatness.add_argument("--positions", type=int, nargs="+", default=[2048, 4096, 8192, 16384], metavar="N")
    flatness.add_argument("--pool", type=int, default=1024, metavar="N", help="tokens of --kv-offload")
    flatness.add_argument("--answer", type=int, default=256, metavar="N", help="tokens decoded each time")
    flatness.add_argument("--rounds", type=int, default=5, metavar="N", help="turns that count at each position")
    parser.add_argument("--without", nargs="+", default=[], choices=(LRU, WHOLE),
                        help="leave out what is known: lru of recall, whole of flatness; that saves reading each text "
                        "once more")  # fmt: skip
    parser.add_argument("--tau", type=int, default=64, help="--kv-offload-interval")
    parser.add_argument("--luced-arguments", default="", metavar="ARGS",
                        help="further options of every luced, in one word")  # fmt: skip
    args = parser.parse_args(arguments)
    make_quick(parser, args, QUICK)
    _check(parser, args)
    return args


def _check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    if min(args.needles, args.rounds) < 1 or args.answer < 2:
        parser.error("--needles, --rounds, --answer: at least one of each, and a token after the first")
    if not all(0 < percent < 100 for percent in args.residency):
        parser.error("--residency: percent of the text, above 0 and below 100")
    for percent in args.residency:
        if args.tokens is not None and args.tokens < least_tokens(percent):
            parser.error(
                f"--tokens {args.tokens}: at {percent} percent a text under {least_tokens(percent)} tokens lies mostly "
                "in the pages that are always there; ask for longer ones, or a larger --residency"
            )
    if "flatness" in args.only and (volume_of(args).n_home < 1 or min(args.positions) <= args.pool):
        parser.error("--positions have to lie beyond --pool, and --pool beyond a page")


def volume_of(args: argparse.Namespace) -> FlatnessVolume:
    sides = tuple(side for side in FLATNESS_SIDES if side not in args.without)
    return FlatnessVolume(tuple(args.positions), args.pool, args.answer, args.rounds, sides)


def settings_of(args: argparse.Namespace) -> EngineSettings:
    return EngineSettings(
        args.luced, args.model, args.ubatch, args.threads, args.gpu_layers, args.cache_type, args.tau,
        args.scorer, tuple(args.luced_arguments.split()), LRU in args.without,
    )  # fmt: skip


class Run:
    """What was measured so far. Written to --json as it comes, should the run not come to its end."""

    def __init__(self, args: argparse.Namespace, console: Console) -> None:
        self.args = args
        self.console = console
        self.recall: list[RecallSample] = []
        self.flatness: list[FlatnessSample] = []

    def add_recall(self, sample: RecallSample) -> None:
        self.recall.append(sample)
        found = ", ".join(f"{side} {'found' if sample.is_right(side) else 'missed'}" for side in sample.answers)
        self.console.log(f"{sample.percent} %, {sample.kind} at {sample.depth:.0%}: {found}", highlight=False)
        self.write()

    def add_flatness(self, sample: FlatnessSample) -> None:
        self.flatness.append(sample)
        if len(self.flatness) % (len(volume_of(self.args).sides) * (self.args.rounds + 1)) == 0:
            self.console.log(f"position {sample.position} is measured", highlight=False)
            self.write()

    def measure(self) -> None:
        args, settings = self.args, settings_of(self.args)
        residencies = [Residency.of(percent, args.tokens) for percent in args.residency]
        if "recall" in args.only:
            for residency in residencies:
                measure_recall(settings, residency, args.kinds, args.needles, args.seed, self.add_recall)
        if "flatness" in args.only:
            measure_flatness(settings, volume_of(args), self.add_flatness)

    def show(self) -> None:
        recall, flatness = recall_rows(self.recall), flatness_rows(self.flatness)
        if recall:
            show_recall(self.console, recall)
        if flatness:
            show_flatness(self.console, flatness)
        for verdict in verdicts(recall, flatness):
            self.console.print(str(verdict), highlight=False)

    def write(self) -> None:
        write_json(self.args.json, to_json(self.recall, self.flatness, options_of(self.args)))


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_arguments(arguments)
    console = Console(width=None if sys.stdout.isatty() else 200)
    os.environ.update(engine_environment(os.environ))  # what the supervisor starts luced with
    run = Run(args, console)
    run.measure()
    run.show()
    return 0


if __name__ == "__main__":
    sys.exit(main())
