#!/usr/bin/env python3
"""Whole answers, prompt included, of luced with speculation against without, by kind of the golden prompts: what a
user of short answers waits for. Sides: n-grams, the drafter, both. Warm processes, or with --cold N the first pass of
N processes each.

    scripts/bench/speculation/whole_answers.py --luced LUCED --threads 2 --pairs 9
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from scripts.bench.harness import ROOT, Ratio, in_turns, luced_arguments, options_of, parser_of, write_json
from tests.daemon_driver import DaemonDriver

GOLDEN = ROOT / "tests" / "data" / "models" / "golden-q8_0.json"
PLAIN = "plain"
N_CTX = 4096


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--draft", type=Path, default=ROOT / "models" / "luce-tiny-dflash-Q8_0.gguf")
    parser.add_argument("--kinds", nargs="+", default=["chat", "code", "copy", "edit", "tools"])
    parser.add_argument("--pairs", type=int, default=9, help="passes that count, after a cold one")
    parser.add_argument("--cold", type=int, default=0, metavar="N", help="of N processes each the first pass instead")
    return parser.parse_args(arguments)


def measure(args: argparse.Namespace) -> dict[str, dict[str, Ratio]]:
    """By kind and side: time in plain decoding's, pass by pass."""
    draft = ["--draft", str(args.draft)]
    sides = {PLAIN: ["--draft-max", "0"], "n-grams": [], "drafter": [*draft, "--draft-ngram", "off"], "both": draft}
    cases = [case for case in json.loads(GOLDEN.read_text())["cases"] if case["kind"] in args.kinds]
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(max(args.cold, 1)):
        with ExitStack() as stack:
            common = luced_arguments(args, 1, N_CTX, N_CTX)
            daemons = {
                name: stack.enter_context(DaemonDriver(args.luced, args.model, *common, *more))
                for name, more in sides.items()
            }
            for turn in range(1 if args.cold else args.pairs + 1):
                taken: dict[tuple[str, str], float] = defaultdict(float)
                for i, case in enumerate(cases):
                    for name in in_turns(list(sides), turn + i):
                        started_s = monotonic()
                        daemons[name].generate(case["prompt_ids"], len(case["tokens"]), "reuse=0")
                        taken[case["kind"], name] += monotonic() - started_s
                for key, seconds in taken.items():
                    if args.cold or turn > 0:
                        times[key].append(seconds)
    return {
        kind: {
            name: Ratio.of([a / b for a, b in zip(times[kind, name], times[kind, PLAIN], strict=True)])
            for name in sides
            if name != PLAIN
        }
        for kind in args.kinds
    }


def main(arguments: list[str] | None = None) -> int:
    args = parse_arguments(arguments)
    found = measure(args)
    for kind, ratios in found.items():
        print(kind, *(f"{name} {ratio}" for name, ratio in ratios.items()), sep="  ")
    ratios_json = {kind: {name: str(ratio) for name, ratio in ratios.items()} for kind, ratios in found.items()}
    write_json(args.json, {"options": options_of(args), "ratios": ratios_json})
    return 0


if __name__ == "__main__":
    sys.exit(main())
