#!/usr/bin/env python3
"""Measure how far a backend's logits move when the same text is computed in another batch.

Eight prompts are answered alone and then all at once in four lanes. Reported is how much the best token's lead over
the second one differs between the two, at each step up to the first one where the texts part. The tests' rule for equal
tokens (tests/daemon/same_tokens.py) takes its noise from here.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.daemon_driver import Answer, DaemonDriver, gen_line, random_prompt  # noqa: E402

N_PROMPTS, N_TOKENS = 8, 64
EXTRA = "logprobs=2 ignore_eos=1"


def leads(answer: Answer) -> list[tuple[int, float]]:
    """Each step's second-best token and how far the best one leads it."""
    return [(line.entries[2][0], line.entries[1][1] - line.entries[2][1]) for line in answer.logprobs]


def compare(alone: Answer, busy: Answer) -> tuple[list[float], list[str]]:
    """The leads' differences up to where the texts part, and where that was."""
    differences: list[float] = []
    rows = zip(alone.tokens, busy.tokens, leads(alone), leads(busy), strict=True)
    for step, (a, b, (second_a, lead_a), (second_b, lead_b)) in enumerate(rows):
        if a != b:
            return differences, [f"step {step}, lead {lead_a:.3f}"]
        if second_a == second_b:
            differences.append(abs(lead_a - lead_b))
    return differences, []


def measure(luced: Path, model: Path, arguments: list[str]) -> tuple[list[float], list[str]]:
    prompts = [random_prompt(20 + 37 * i, seed=i) for i in range(N_PROMPTS)]
    with DaemonDriver(luced, model, "--lanes", "1", "--ctx", "1024", *arguments) as daemon:
        alone = [daemon.generate(prompt, N_TOKENS, EXTRA) for prompt in prompts]
    with DaemonDriver(luced, model, "--lanes", "4", "--ctx", "1024", "--pool", "4096", *arguments) as daemon:
        daemon.send(*(gen_line(i, N_TOKENS, prompt, EXTRA) for i, prompt in enumerate(prompts)))
        busy = daemon.collect(N_PROMPTS)
    differences: list[float] = []
    parted: list[str] = []
    for i, answer in enumerate(alone):
        more, where = compare(answer, busy[i])
        differences += more
        parted += where
    return sorted(differences), parted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--luced", type=Path, default=ROOT / "build" / "release" / "native" / "luced")
    parser.add_argument("models", type=Path, nargs="+", help="GGUF files; what follows -- goes to luced")
    own, rest = sys.argv[1:], list[str]()
    if "--" in own:
        at = own.index("--")
        own, rest = own[:at], own[at + 1 :]
    args = parser.parse_args(own)
    print("| model | steps | median | 99 % | largest | texts parted at |")
    print("|---|---|---|---|---|---|")
    for model in args.models:
        differences, parted = measure(args.luced, model, rest)
        n = len(differences)
        print(
            f"| {model.stem} | {n} | {differences[n // 2]:.5f} | {differences[int(n * 0.99)]:.4f} "
            f"| {differences[-1]:.4f} | {'; '.join(parted) or '-'} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
