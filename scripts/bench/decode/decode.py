#!/usr/bin/env python3
"""Measure luced's decoding against a bare llama_decode loop on the same libllama, side by side in one run; or with
--sampling its sampled decoding against its own greedy one, to see what choosing tokens costs: by itself, and with what
requests with tools bring along, a grammar that waits for a tool call and a budget of thinking.

Both programs load the same model with the same cache types, batch and threads and take turns, pair by pair, so that
whatever else the machine does falls on both. Reported are medians over the pairs and their spread; the figures to
look at are the ratios. Aims: decode speed at least 0.97 of the bare loop with one lane and with eight, time to the
first token within 2 ms of it, resident memory within 30 MB. Sampled decoding: at least 0.97 of greedy in 1, 8 and 16
lanes, on a vocabulary as large as models have now (--model bench-vocabulary); with a constraint the same.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from luce.protocol import Token, percent_encode

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from scripts.bench.decode.bare_loop import BareLoop, Sample, n_cells
from scripts.bench.harness import Ratio, in_turns, luced_arguments, parser_of, write_json
from tests.daemon_driver import DaemonDriver, gen_line, random_prompt, to_bytes

TOOL_GRAMMAR = percent_encode('root ::= "<tool_call>\\n{" [^}]* "}\\n</tool_call>"')
# Of ids that a random model hardly writes in this order: the grammar waits and the budget is not spent.
CONSTRAINT = (
    f"grammar={TOOL_GRAMMAR} grammar_lazy=1 triggers=word:{percent_encode('<tool_call>')}"
    " think_budget=100000 think_start=10,11,12 think_end=13,14,15"
)


def measure_luced(
    daemon: DaemonDriver, args: argparse.Namespace, prompt: Path, n_lanes: int, sampling: str = ""
) -> Sample:
    """From the moment that every lane has its first token to the end of the first lane."""
    started_s = time.monotonic()
    daemon.send(*(gen_line(i, args.tokens, prompt, f"ignore_eos=1 reuse=0 {sampling}") for i in range(n_lanes)))
    first_token_s = 0.0
    n_of_lane = [0] * n_lanes
    while not all(n_of_lane):
        event = daemon.next_token()
        if isinstance(event, Token):
            n_of_lane[event.id] += 1
        if first_token_s == 0:
            first_token_s = time.monotonic() - started_s
    daemon.drop_buffered_tokens()  # they came before the window opens
    window_s = time.monotonic()
    daemon.next_ok()
    decode_s = time.monotonic() - window_s
    n_tokens = 0
    n_open = n_lanes
    while n_open:
        event = daemon.next_token()
        if isinstance(event, Token):
            n_tokens += n_open == n_lanes
        else:
            n_open -= 1
    resident_kb = daemon.resident_kb()
    for _ in range(n_lanes - 1):
        daemon.next_ok()
    return Sample(first_token_s, decode_s, n_tokens, resident_kb)


def run_pairs(args: argparse.Namespace, prompt: Path, n_lanes: int) -> tuple[list[Sample], list[Sample]]:
    arguments = luced_arguments(args, n_lanes, n_cells(args, n_lanes))
    ours: list[Sample] = []
    theirs: list[Sample] = []
    bare = BareLoop(args, prompt, n_lanes)
    with DaemonDriver(args.luced, args.model, *arguments) as daemon:
        sides = (theirs, bare.measure), (ours, lambda: measure_luced(daemon, args, prompt, n_lanes))
        for i in range(args.pairs + 1):
            for samples, measure in in_turns(sides, i):
                samples.append(measure())
    bare.close()
    return ours[1:], theirs[1:]  # the first pair warms up and does not count


def run_sampled_turns(args: argparse.Namespace, prompt: Path, n_lanes: int) -> dict[str, list[Sample]]:
    """All sides are requests to one daemon."""
    keys = {"sampled": args.sampling, "greedy": "", "constrained": f"{args.sampling} {CONSTRAINT}"}
    sides: dict[str, list[Sample]] = {name: [] for name in keys}
    with DaemonDriver(args.luced, args.model, *luced_arguments(args, n_lanes, n_cells(args, n_lanes))) as daemon:
        for i in range(args.pairs + 1):
            for name, samples in in_turns(tuple(sides.items()), i):
                samples.append(measure_luced(daemon, args, prompt, n_lanes, keys[name]))
    return {name: samples[1:] for name, samples in sides.items()}


def ratio_of(ours: list[Sample], theirs: list[Sample]) -> Ratio:
    return Ratio.of([a.tokens_per_s / b.tokens_per_s for a, b in zip(ours, theirs, strict=True)])


def report_sampled(n_lanes: int, sides: dict[str, list[Sample]]) -> None:
    rates = {name: statistics.median(s.tokens_per_s for s in samples) for name, samples in sides.items()}
    ratios = [ratio_of(sides[name], sides["greedy"]) for name in ("sampled", "constrained")]
    print(
        f"| {n_lanes} | {rates['greedy']:.1f} | {rates['sampled']:.1f} | {ratios[0]} | {rates['constrained']:.1f} "
        f"| {ratios[1]} |",
        flush=True,
    )


def report(n_lanes: int, ours: list[Sample], theirs: list[Sample]) -> None:
    delays_ms = [(a.first_token_s - b.first_token_s) * 1e3 for a, b in zip(ours, theirs, strict=True)]
    # Only one lane compares: with several, luced reads all prompts in one slice, the bare loop one after the other.
    delay = f"{statistics.median(delays_ms):+.2f}" if n_lanes == 1 else "-"
    memory_mb = (ours[-1].resident_kb - theirs[-1].resident_kb) / 1024
    luced_rate = statistics.median(s.tokens_per_s for s in ours)
    bare_rate = statistics.median(s.tokens_per_s for s in theirs)
    print(
        f"| {n_lanes} | {luced_rate:.1f} | {bare_rate:.1f} | {ratio_of(ours, theirs)} | {delay} | {memory_mb:+.1f} |",
        flush=True,
    )


def parse_arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, model="bench-150m", bare="bare_decode")
    parser.add_argument("--lanes", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8])
    parser.add_argument("--sampling", metavar="KEYS", help='of gen, such as "temp=0.7 top_k=40 top_p=0.95"')
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--prompt", type=int, default=64, help="prompt tokens")
    parser.add_argument("--tokens", type=int, default=128, help="tokens to generate in each lane")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    if args.sampling:
        print("| lanes | greedy tok/s | sampled tok/s | ratio, median (range) | constrained tok/s | ratio |")
        print("|---|---|---|---|---|---|")
    else:
        print("| lanes | luced tok/s | bare tok/s | ratio, median (range) | first token, ms later | memory, MB more |")
        print("|---|---|---|---|---|---|")
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(to_bytes(random_prompt(args.prompt)))
        file.flush()
        figures = []
        for n_lanes in args.lanes:
            if args.sampling:
                sides = run_sampled_turns(args, Path(file.name), n_lanes)
                report_sampled(n_lanes, sides)
            else:
                ours, theirs = run_pairs(args, Path(file.name), n_lanes)
                report(n_lanes, ours, theirs)
                sides = {"luced": ours, "bare": theirs}
            figures.append({"lanes": n_lanes, **{name: list(map(vars, side)) for name, side in sides.items()}})
            write_json(args.json, figures)


if __name__ == "__main__":
    main()
