#!/usr/bin/env python3
"""Measure what a running lane notices of a long prompt beside it, and what the slicing costs that prompt.

One lane streams; then a prompt of 4,000 tokens is prefilled in a second one. Measured are the longest gap between two
tokens of the first lane while that lasts, against the duration of one prefill slice, and the time of the whole
prefill against the same prompt alone and against a bare llama_decode loop. Aims: gap under 3 slices; prefill at most
1.15 times the unsliced one.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from luce.protocol import End, Token

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from scripts.bench.decode.bare_loop import BareLoop
from scripts.bench.harness import luced_arguments, parser_of, write_json
from tests.daemon_driver import DaemonDriver, gen_line, random_prompt, to_bytes

STREAMING, LONG = 1, 2


@dataclass(frozen=True)
class Sample:
    alone_s: float
    beside_s: float
    longest_gap_s: float
    n_gaps: int

    @property
    def slice_s(self) -> float:
        """Each slice lets the streaming lane have one token: what a slice and its decode step take together."""
        return self.beside_s / max(self.n_gaps, 1)


def prefill_alone(daemon: DaemonDriver, prompt: Path) -> float:
    started_s = time.monotonic()
    daemon.send(gen_line(LONG, 1, prompt, "ignore_eos=1 reuse=0"))
    daemon.next_ok()
    seconds = time.monotonic() - started_s
    while not isinstance(daemon.next_token(), End):
        pass
    return seconds


def measure(daemon: DaemonDriver, short: Path, prompt: Path) -> Sample:
    alone_s = prefill_alone(daemon, prompt)
    daemon.send(gen_line(STREAMING, 100_000, short, "ignore_eos=1"))
    for _ in range(32):
        daemon.next_token()
    daemon.send(gen_line(LONG, 1, prompt, "ignore_eos=1 reuse=0"))
    started_s = last_s = time.monotonic()
    gaps = []
    while True:
        event = daemon.next_token()
        if isinstance(event, Token) and event.id == STREAMING:
            gaps.append(time.monotonic() - last_s)
            last_s = time.monotonic()
        elif event.id == LONG:
            break
    beside_s = time.monotonic() - started_s
    daemon.send(f"cancel id={STREAMING}")
    n_ends = 0
    while n_ends < 2:
        n_ends += isinstance(daemon.next_token(), End)
    for _ in range(3):  # two requests and the cancel itself
        daemon.next_reply()
    return Sample(alone_s, beside_s, max(gaps), len(gaps))


def main() -> None:
    parser = parser_of(__doc__, bare="bare_decode")
    parser.add_argument("--prompt", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.set_defaults(tokens=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        short, prompt = Path(folder, "short.bin"), Path(folder, "long.bin")
        short.write_bytes(to_bytes(random_prompt(16)))
        prompt.write_bytes(to_bytes(random_prompt(args.prompt)))
        arguments = [*luced_arguments(args, 2, 8192, 16384), "--seed", "1"]
        bare = BareLoop(args, prompt, 1)
        samples, bare_s = [], []
        with DaemonDriver(args.luced, args.model, *arguments) as daemon:
            measure(daemon, short, prompt)
            for _ in range(args.rounds):
                bare_s.append(bare.measure().first_token_s)
                samples.append(measure(daemon, short, prompt))
        bare.close()
    write_json(args.json, {"luced": list(map(vars, samples)), "bare_s": bare_s})
    print("| prompt | slices | slice, ms | longest gap, ms | gap / slice | prefill / alone | alone / bare |")
    print("|---|---|---|---|---|---|---|")
    median = statistics.median
    slices = median(s.n_gaps for s in samples)
    print(
        f"| {args.prompt} | {slices:.0f} | {median(s.slice_s for s in samples) * 1e3:.0f} "
        f"| {median(s.longest_gap_s for s in samples) * 1e3:.0f} "
        f"| **{median(s.longest_gap_s / s.slice_s for s in samples):.2f}** "
        f"| **{median(s.beside_s / s.alone_s for s in samples):.3f}** "
        f"| {median(s.alone_s / b for s, b in zip(samples, bare_s, strict=True)):.3f} |"
    )


if __name__ == "__main__":
    main()
