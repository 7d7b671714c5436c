"""What llama.cpp's own benchmarks measure: llama-bench and llama-batched-bench, a process each time, read from the
lines that they print. It must not know luced.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

DEADLINE_S = 1800.0


@dataclass(frozen=True)
class Rate:
    """Tokens a second."""

    prefill: float
    decode: float


def llama_bench(args: argparse.Namespace, n_prompts: Sequence[int], n_generate: int, depths: Sequence[int]) -> str:
    """What it prints: prompts of these lengths at each depth, or so many tokens behind each."""
    sizes = [("-p", n_prompts), ("-n", [n_generate]), ("-d", depths), ("-ub", args.peer_ubatches)]
    return _run([
        str(args.llama_bench), "-m", str(args.model), "-fa", "on", "-b", str(max(2048, *args.peer_ubatches)),
        "-t", str(args.threads), "-ngl", str(args.gpu_layers), "-ctk", args.cache_type, "-ctv", args.cache_type,
        "-r", "1", "-o", "jsonl", *(word for key, values in sizes for word in (key, ",".join(map(str, values)))),
    ])  # fmt: skip


def read_llama_bench(text: str) -> dict[tuple[int, int], float]:
    """(prompt's tokens, depth) -> tokens a second with the best micro-batch; the prompt is 0 where it decoded."""
    rates: dict[tuple[int, int], float] = {}
    for row in _rows(text):
        key = (row["n_prompt"], row["n_depth"])
        rates[key] = max(rates.get(key, 0.0), row["avg_ts"])
    return rates


def llama_batched_bench(
    args: argparse.Namespace, n_lanes: int, n_prompt: int, n_generate: int, *, is_unified: bool
) -> str:
    n_cells = n_lanes * (n_prompt + n_generate)
    return _run([
        str(args.llama_batched_bench), "-m", str(args.model), "-fa", "on", "-c", str(-(-n_cells // 256) * 256),
        "-b", "2048", "-ub", str(args.ubatch or 512), "-t", str(args.threads), "-tb", str(args.threads),
        "-ngl", str(args.gpu_layers), "-ctk", args.cache_type, "-ctv", args.cache_type,
        "-npp", str(n_prompt), "-ntg", str(n_generate), "-npl", str(n_lanes),
        "--output-format", "jsonl", *(["-kvu"] if is_unified else []),
    ])  # fmt: skip


def read_llama_batched_bench(text: str) -> dict[int, Rate]:
    """By lanes."""
    return {row["pl"]: Rate(row["speed_pp"], row["speed_tg"]) for row in _rows(text)}


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with status {done.returncode}: {done.stderr[-1000:]}")
    return done.stdout + done.stderr


def _rows(text: str) -> Iterator[dict[str, Any]]:
    """Both print other lines, too."""
    for line in text.splitlines():
        if line.startswith("{"):
            yield json.loads(line)
