#!/usr/bin/env python3
"""Measure what a long prompt leaves behind for the first tokens of its answer (copies of pages and states, say): their
speed against that of the rest of the same answer, in one daemon, with room for everything in the pool.

Reported by depth, over the pairs: tokens per second of the first --early tokens over those of the rest, and the longest
gap between two tokens over the median one, from the third token on. Aim: 1.0, and 2.0 at most.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from time import monotonic

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from luce.protocol import Token
from scripts.bench.harness import Ratio, in_turns, luced_arguments, options_of, parser_of, write_json
from tests.daemon.exactness import done
from tests.daemon_driver import DaemonDriver, gen_line, random_prompt

SETTLED = 2
"""Tokens at an answer's beginning whose gaps are not looked at one by one."""


@dataclass(frozen=True)
class Sample:
    speed_ratio: float
    """Of the first tokens, to the rest's."""
    longest_early: float
    """Gap among the first tokens, in median gaps of the answer."""
    longest_late: float


def sample_of(gaps_s: Sequence[float], n_early: int) -> Sample:
    early_s, late_s = gaps_s[:n_early], gaps_s[n_early:]
    median_s = statistics.median(gaps_s)
    return Sample(
        statistics.fmean(late_s) / statistics.fmean(early_s), max(early_s[SETTLED:]) / median_s, max(late_s) / median_s
    )


def measure(daemon: DaemonDriver, n_prompt: int, n_tokens: int, n_early: int, seed: int) -> Sample:
    done(daemon, "CLEAR")
    daemon.send(gen_line(1, n_tokens, random_prompt(n_prompt, seed=seed), "ignore_eos=1 temp=0"))
    times_s: list[float] = []
    while isinstance(daemon.next_token(), Token):
        times_s.append(monotonic())
    daemon.next_ok()
    return sample_of([after - before for before, after in pairwise(times_s)], n_early)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--prompts", type=lambda text: [int(n) for n in text.split(",")], default=[8192, 32768],
                        metavar="N,…", help="tokens of the prompts")  # fmt: skip
    parser.add_argument("--tokens", type=int, default=400, help="of each answer")
    parser.add_argument("--early", type=int, default=150, help="of these, the first ones")
    parser.add_argument("--host-cache", default="8G", help="as luced's option")
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()
    n_ctx = -(-(max(args.prompts) + args.tokens + 1) // 256) * 256
    arguments = [*luced_arguments(args, 1, n_ctx, 2 * n_ctx), "--draft-max", "0", "--host-cache", args.host_cache]
    samples: dict[int, list[Sample]] = {n: [] for n in args.prompts}
    with DaemonDriver(args.luced, args.model, *arguments) as daemon:
        measure(daemon, args.prompts[0], 4 + args.early, args.early, seed=0)
        for turn in range(args.pairs):
            for n_prompt in in_turns(args.prompts, turn):
                sample = measure(daemon, n_prompt, args.tokens, args.early, seed=1 + turn)
                samples[n_prompt].append(sample)
                told = {n: [asdict(one) for one in of] for n, of in samples.items()}
                write_json(args.json, {"options": options_of(args), "samples": told})
    print(f"| prompt | first {args.early} tokens/s over the rest | longest gap among them | among the rest |")
    print("|---|---|---|---|")
    for n_prompt, of in samples.items():
        ratio = Ratio.of([one.speed_ratio for one in of])
        print(
            f"| {n_prompt} | {ratio} | {max(one.longest_early for one in of):.2f} | "
            f"{max(one.longest_late for one in of):.2f} |"
        )


if __name__ == "__main__":
    main()
