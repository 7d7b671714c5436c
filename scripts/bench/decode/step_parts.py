#!/usr/bin/env python3
"""Where the time of a decoding step goes, from the trace that luced writes (--trace): by depth, lanes and sampling.

A step is counted from its beginning to the next one's. Shares are medians over the steps that give each running lane
one token, without the first ones of each answer; so they hold on a machine where other programs run, where times do
not. Nothing is drafted unless --draft-max says so.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from scripts.bench.harness import luced_arguments, options_of, parser_of, write_json
from tests.daemon_driver import DaemonDriver, gen_line, random_prompt

SAMPLED = "temp=0.7 top_k=40 top_p=0.95 seed=1"
FIRST = 3  # steps with all lanes, at the beginning of an answer, that are left out


@dataclass(frozen=True)
class Case:
    name: str
    n_prompt: int
    n_lanes: int
    sampling: str = "temp=0"


CASES = (
    Case("1 lane behind 1K", 1000, 1),
    Case("1 lane behind 6K", 6000, 1),
    Case("4 lanes behind 1K", 1000, 4),
    Case("1 lane behind 1K, sampled", 1000, 1, SAMPLED),
    Case("4 lanes behind 1K, sampled", 1000, 4, SAMPLED),
)


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The spans of the engine's thread, also of a file that was cut off."""
    text = path.read_text()
    events = json.loads(text if text.endswith("]\n") else text[: text.rindex(",\n")] + "]")
    spans = [event for event in events if event["ph"] == "X"]
    engine = next(span["tid"] for span in spans if span["name"] == "step")
    return sorted((span for span in spans if span["tid"] == engine), key=lambda span: (span["ts"], -span["dur"]))


def steps_of(spans: list[dict[str, Any]]) -> list[tuple[dict[str, Any], Counter[str]]]:
    """Each step but the last, and the microseconds of each part up to the next one: a span's less those within it."""
    steps: list[tuple[dict[str, Any], Counter[str]]] = []
    open_spans: list[dict[str, Any]] = []
    for span in spans:
        if span["name"] == "step":
            if steps:
                own = steps[-1][1]
                own["loop"] += span["ts"] - steps[-1][0]["ts"] - own.total()
            steps.append((span, Counter()))
            open_spans = []
        if not steps:
            continue
        while open_spans and open_spans[-1]["ts"] + open_spans[-1]["dur"] <= span["ts"]:
            open_spans.pop()
        if open_spans:
            steps[-1][1][open_spans[-1]["name"]] -= span["dur"]
        steps[-1][1][span["name"]] += span["dur"]
        open_spans.append(span)
    return steps[:-1]


def shares_of(spans: list[dict[str, Any]], n_lanes: int) -> dict[str, float]:
    """Medians, in percent."""
    lanes_and_tokens = {"lanes": n_lanes, "tokens": n_lanes}
    counted = [parts for step, parts in steps_of(spans) if step["args"] == lanes_and_tokens and "idle" not in parts]
    steps = counted[FIRST:]
    names = {name for parts in steps for name in parts}
    return {name: statistics.median(100 * parts[name] / parts.total() for parts in steps) for name in names}


def measure(args: Any, case: Case, folder: Path) -> dict[str, float]:
    trace = folder / "trace.json"
    n_ctx = case.n_prompt + args.tokens + 64
    arguments = luced_arguments(args, case.n_lanes, n_ctx, n_ctx * case.n_lanes)
    with DaemonDriver(
        args.luced, args.model, *arguments, "--draft-max", str(args.draft_max), "--trace", str(trace)
    ) as daemon:
        for i in range(case.n_lanes):
            daemon.send(gen_line(i, args.tokens, random_prompt(case.n_prompt, i), f"ignore_eos=1 {case.sampling}"))
        daemon.collect(case.n_lanes)
    return shares_of(read_trace(trace), case.n_lanes)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--draft-max", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shares = {case.name: measure(args, case, Path(folder)) for case in CASES}
    names = sorted(
        {name for of in shares.values() for name in of}, key=lambda n: -max(s.get(n, 0) for s in shares.values())
    )
    print("| part | " + " | ".join(shares) + " |\n|---|" + "---|" * len(shares))
    for name in names:
        print(f"| `{name}` | " + " | ".join(f"{of.get(name, 0):.2f}" for of in shares.values()) + " |")
    write_json(args.json, {"options": options_of(args), "shares": shares})


if __name__ == "__main__":
    main()
