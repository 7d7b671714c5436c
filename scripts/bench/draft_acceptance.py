#!/usr/bin/env python3
"""How much of drafts is kept where a request samples: matched, and judged by rejection sampling (--draft-accept).

Counts, not times: the gate is off, so that a seed gives the same figures each time. It must not know why.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from luce.protocol import GenerateOk  # noqa: E402
from scripts.bench.speculation_prompts import SET_NAMES, RenderedPrompt, load_rendered  # noqa: E402
from tests.daemon_driver import DaemonDriver  # noqa: E402

WAYS = ("match", "rejection")


@dataclass
class Counts:
    n_steps: int = 0  # that verified drafts
    n_drafted: int = 0
    n_accepted: int = 0

    def add(self, other: Counts) -> None:
        self.n_steps += other.n_steps
        self.n_drafted += other.n_drafted
        self.n_accepted += other.n_accepted

    def __str__(self) -> str:
        if self.n_drafted == 0:
            return "nothing drafted"
        share, each = self.n_accepted / self.n_drafted, self.n_accepted / self.n_steps
        return f"{self.n_accepted}/{self.n_drafted} = {share:.3f}, {each:.2f} a draft"


def answer(daemon: DaemonDriver, prompt: RenderedPrompt, n_tokens: int, sampling: str) -> Counts:
    reply = daemon.generate(prompt.ids, n_tokens, sampling).reply
    if not isinstance(reply, GenerateOk):
        raise SystemExit(f"{prompt.name}: {reply}")
    spec = reply.speculation
    return Counts() if spec is None else Counts(spec.n_speculated_steps, spec.n_drafted, spec.n_accepted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--luced", type=Path, default=ROOT / "build" / "release" / "native" / "luced")
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "luce-tiny-Q8_0.gguf")
    parser.add_argument("--draft", type=Path, default=ROOT / "models" / "luce-tiny-dflash-Q8_0.gguf")
    parser.add_argument("--draft-max", type=int, default=4)
    parser.add_argument("--sets", nargs="+", default=list(SET_NAMES), choices=SET_NAMES)
    parser.add_argument("--prompts", type=int, default=None, help="so many of each set (default: all)")
    parser.add_argument("--tokens", type=int, default=128, help="most tokens of an answer")
    parser.add_argument("--temp", type=float, default=1.0)
    parser.add_argument("--sampling", default="", metavar="ARGS", help="further arguments of the requests: 'top_p=0.9'")
    options = parser.parse_args()
    sampling = f"temp={options.temp} seed=1 {options.sampling}".rstrip()
    prompts = load_rendered(options.model, options.sets, n_prompts=options.prompts)
    totals = {way: Counts() for way in WAYS}
    for name, of_set in prompts.items():
        for way in WAYS:
            counts = Counts()
            arguments = ("--draft", str(options.draft), "--draft-max", str(options.draft_max), "--draft-accept", way)
            fixed = ("--draft-gate", "off", "--draft-ngram", "off", "--lanes", "1")
            with DaemonDriver(options.luced, options.model, *arguments, *fixed) as daemon:
                for prompt in of_set:
                    counts.add(answer(daemon, prompt, options.tokens, sampling))
            totals[way].add(counts)
            print(f"{name:6} {way:10} {counts}", flush=True)
    for way, counts in totals.items():
        print(f"{'all':6} {way:10} {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
