#!/usr/bin/env python3
"""Replay page traces of real agent sessions through luced's own memory (index, slots, eviction), without a model.

Sessions start at random within some hours and run beside each other; pauses between a reply and the next request are
cut at ten minutes. Compared are the share of prompt tokens that memory serves with luced's eviction policy, with least
recently used, and what a clairvoyant policy (evicts the page that is needed latest) would reach; "way" is how far from
the second to the third luced gets. On models with state each tail counts 100 MB and a page 1 MiB; the clairvoyant pays
for no tails there, so nothing can reach it.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PAGE = 64
LONGEST_PAUSE_S = 600.0
BUDGETS = (125_000, 250_000, 500_000, 1_000_000, 2_000_000)
TAIL_BYTES = 100_000_000
PAGE_BYTES = 1 << 20  # of 64 positions; the replay's rows have one byte each, and tails shrink with them
LOOK_AHEAD = 5  # requests, for where texts will depart: a message boundary that the supervisor would have marked


@dataclass(frozen=True)
class Request:
    at_s: float
    n_tokens: int
    runs: tuple[tuple[int, int], ...]
    marks: tuple[int, ...]
    rest_page: int  # whose first tokens follow the last full page, as a later request shows; -1: not known


@dataclass(frozen=True)
class Row:
    kind: str
    budget: int
    lru: float
    luced: float
    clairvoyant: float
    way: float
    lowest_way: float
    lowest_gain: float
    policy_us: float
    max_policy_us: float
    checkpoints: float


def n_common_pages(a: Sequence[Sequence[int]], b: Sequence[Sequence[int]]) -> int:
    """How many pages two texts share from their start, given as runs (first, count)."""
    left, right, n = expand(a), expand(b), 0
    for x, y in zip(left, right, strict=False):
        if x != y:
            break
        n += 1
    return n


def expand(runs: Sequence[Sequence[int]]) -> Iterator[int]:
    for first, count in runs:
        yield from range(first, first + count)


def read_session(trace: dict[str, Any], first_id: int) -> list[Request]:
    """A session on its own clock, long pauses cut. Marks: where it was asked before, and where it will depart."""
    requests: list[Request] = []
    asked = trace["requests"]
    at_s, before_s = 0.0, 0.0
    for i, request in enumerate(asked):
        at_s += max(0.0, request["t"] - before_s - max(0.0, request.get("think_time", 0.0) - LONGEST_PAUSE_S))
        before_s = request["t"]
        n_pages = sum(count for _, count in request["pages"])
        departures = {n_common_pages(request["pages"], later["pages"]) for later in asked[i + 1 : i + 1 + LOOK_AHEAD]}
        ends = {earlier["in"] for earlier in asked[max(0, i - 8) : i] if earlier["in"] < request["in"]}
        marks = {n * PAGE for n in departures if 0 < n < n_pages} | ends
        runs = tuple((first + first_id, count) for first, count in request["pages"])
        rest_page = -1
        if i + 1 < len(asked) and n_common_pages(request["pages"], asked[i + 1]["pages"]) == n_pages:
            rest_page = next((first_id + page for page in islice(expand(asked[i + 1]["pages"]), n_pages, None)), -1)
        n_tokens = max(request["in"], n_pages * PAGE + 1)
        requests.append(Request(at_s, n_tokens, runs, tuple(sorted(marks)), rest_page))
    return requests


def read_sessions(path: Path) -> list[list[Request]]:
    sessions: list[list[Request]] = []
    first_id = 0
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as lines:
        for line in lines:
            trace = json.loads(line)
            if trace["block"] != PAGE:
                raise SystemExit(f"{path}: pages of {trace['block']} tokens, not {PAGE}")
            sessions.append(read_session(trace, first_id))
            first_id += 1 + max(first + count for r in trace["requests"] for first, count in r["pages"])
    return sessions


def interleave(sessions: Sequence[Sequence[Request]], seed: int, hours: float) -> list[Request]:
    rng = random.Random(seed)
    requests = []
    for session in sessions:
        start_s = rng.uniform(0, hours * 3600)
        requests += [replace(request, at_s=start_s + request.at_s) for request in session]
    return sorted(requests, key=lambda request: request.at_s)


def write_events(requests: Sequence[Request], path: Path) -> None:
    with path.open("w") as file:
        for r in requests:
            runs = " ".join(f"{first} {count}" for first, count in r.runs)
            marks = " ".join(map(str, r.marks))
            print(
                f"{r.at_s:.3f} {r.n_tokens} {len(r.runs)} {runs} {r.rest_page} {len(r.marks)} {marks}".rstrip(),
                file=file,
            )


def replay(program: Path, events: Path, policy: str, budget: int, state_bytes: int) -> dict[str, float]:
    command: list[str | Path] = [program, events, policy, str(budget), str(state_bytes)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {result.stderr.strip()}")
    outcome: dict[str, float] = json.loads(result.stdout)
    return outcome


def measure(program: Path, mixes: Sequence[Path], budget: int, state_bytes: int) -> Row:
    lru, luced, best = [], [], []
    for events in mixes:
        lru.append(replay(program, events, "lru", budget, state_bytes))
        luced.append(replay(program, events, "learned", budget, state_bytes))
        best.append(replay(program, events, "clairvoyant", budget, 0))
    shares = [[outcome["served"] for outcome in outcomes] for outcomes in (lru, luced, best)]
    means = [statistics.fmean(s) for s in shares]
    ways = [way(low, ours, high) for low, ours, high in zip(*shares, strict=True)]
    return Row(
        kind="hybrid" if state_bytes else "attention",
        budget=budget,
        lru=means[0],
        luced=means[1],
        clairvoyant=means[2],
        way=way(*means),
        lowest_way=min(ways),
        lowest_gain=min(ours - low for low, ours in zip(shares[0], shares[1], strict=True)),
        policy_us=max(outcome["policy_us"] for outcome in luced),
        max_policy_us=max(outcome["max_policy_us"] for outcome in luced),
        checkpoints=statistics.fmean(outcome["checkpoints"] for outcome in luced),
    )


def way(lru: float, luced: float, clairvoyant: float) -> float:
    """0: no better than least recently used; 1: as good as knowing the future."""
    return (luced - lru) / (clairvoyant - lru) if clairvoyant - lru > 1e-6 else 0.0


def markdown(row: Row) -> str:
    return (
        f"| {row.kind} | {row.budget:,} | {row.lru:.3f} | **{row.luced:.3f}** | {row.clairvoyant:.3f} "
        f"| {row.way:+.2f} | {row.lowest_way:+.2f} | {row.lowest_gain:+.4f} | {row.policy_us:.1f} "
        f"| {row.max_policy_us:.0f} | {row.checkpoints:.0f} |"
    )


HEADER = (
    "| memory | budget, tokens | LRU | luced | clairvoyant | way | lowest way | lowest gain "
    "| policy, us | worst, us | checkpoints |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, help="one JSON object a line, .xz or plain (shared/traces/README.md)")
    parser.add_argument(
        "--program", type=Path, default=ROOT / "build" / "release" / "scripts" / "bench" / "trace_replay"
    )
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS, metavar="TOKENS")
    parser.add_argument("--kinds", nargs="+", choices=("attention", "hybrid"), default=("attention", "hybrid"))
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3), help="of the sessions' interleaving")
    parser.add_argument("--hours", type=float, default=6.0, help="over which the sessions start")
    parser.add_argument("--sessions", type=int, help="only the first so many")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the rows, as JSON")
    args = parser.parse_args()

    sessions = read_sessions(args.traces)[: args.sessions]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        mixes = [Path(folder) / f"{seed}.txt" for seed in args.seeds]
        for seed, path in zip(args.seeds, mixes, strict=True):
            write_events(interleave(sessions, seed, args.hours), path)
        print(HEADER, flush=True)
        for kind in args.kinds:
            state_bytes = TAIL_BYTES * PAGE // PAGE_BYTES if kind == "hybrid" else 0
            for budget in args.budgets:
                rows.append(measure(args.program, mixes, budget, state_bytes))
                print(markdown(rows[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
