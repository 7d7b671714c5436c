"""What all benchmarks share: whose turn it is, ratios pair by pair, the options of both sides' engines, models that are
made on first use, results as JSON. It must not know what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
TINY = ROOT / "models" / "luce-tiny-Q8_0.gguf"

T = TypeVar("T")
U = TypeVar("U")


def in_turns(sides: Sequence[T], turn: int) -> list[T]:
    """Another one first each time, so that what a machine does meanwhile falls on all of them."""
    at = turn % len(sides)
    return [*sides[at:], *sides[:at]]


def measure_pairs(ours: Callable[[int], T], theirs: Callable[[int], U], n_pairs: int) -> tuple[list[T], list[U]]:
    """Both in turns; a pair has its number, from 1 on."""
    found: tuple[list[T], list[U]] = ([], [])
    for pair in range(1, n_pairs + 1):
        for is_ours in in_turns((True, False), pair):
            if is_ours:
                found[0].append(ours(pair))
            else:
                found[1].append(theirs(pair))
    return found


@dataclass(frozen=True)
class Ratio:
    """Over the pairs: the median, and the range."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Ratio:
        return cls(statistics.median(ratios), min(ratios), max(ratios))

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} .. {self.high:.3f})"


def parser_of(
    doc: str | None, *, model: str | None = "luce-tiny", bare: str | None = None, has_peer: bool = False,
    has_quick: bool = False, ubatch: int = 512,
) -> argparse.ArgumentParser:  # fmt: skip
    """The options that comparisons have in common: what both sides run with, and where the results go. `bare` names the
    program of scripts/bench/decode that is the other side; `has_peer`: llama-server is one."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--luced", type=Path, default=BUILD / "native" / "luced")
    parser.add_argument("--ubatch", type=int, default=ubatch, help="0: luced chooses; others take 512")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--gpu-layers", type=int, default=0)
    parser.add_argument("--cache-type", default="q8_0")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every figure and sample")
    if model is not None:
        parser.add_argument("--model", type=model_path, default=model, help=f"a file, or a shape to make ({model})")
    if bare is not None:
        parser.add_argument("--bare", type=Path, default=BUILD / "scripts" / "bench" / bare)
    if has_peer:
        parser.add_argument("--vs", type=Path, metavar="PATH", help="llama-server of the same llama.cpp (or none)")
    if has_quick:
        parser.add_argument("--quick", action="store_true", help="does it work at all? small volumes, some minutes")
    return parser


def make_quick(parser: argparse.ArgumentParser, args: argparse.Namespace, small: dict[str, Any]) -> None:
    """Options that were given stay: only defaults are replaced."""
    if args.quick:
        vars(args).update({key: value for key, value in small.items() if vars(args)[key] == parser.get_default(key)})


def luced_arguments(args: argparse.Namespace, n_lanes: int, n_ctx: int, n_pool: int | None = None) -> list[str]:
    return [
        "--lanes", str(n_lanes), "--ctx", str(n_ctx), *(["--pool", str(n_pool)] if n_pool is not None else []),
        *(["--ubatch", str(args.ubatch)] if args.ubatch else []),
        "--threads", str(args.threads), "--gpu-layers", str(args.gpu_layers),
        "--cache-type-k", args.cache_type, "--cache-type-v", args.cache_type,
    ]  # fmt: skip


def llama_server_arguments(args: argparse.Namespace, n_slots: int, n_cells: int) -> list[str]:
    """The same for llama.cpp's own server. The packaged model's training context is longer than its file says."""
    return [
        "--parallel", str(n_slots), "--ctx-size", str(n_cells),
        "--batch-size", str(args.ubatch or 512), "--ubatch-size", str(args.ubatch or 512),
        "--threads", str(args.threads), "--threads-batch", str(args.threads), "--gpu-layers", str(args.gpu_layers),
        "--cache-type-k", args.cache_type, "--cache-type-v", args.cache_type, "-fa", "on",
        "--override-kv", "qwen35.context_length=int:65536",
    ]  # fmt: skip


def model_path(name: str) -> Path:
    """A GGUF file, luce-tiny, or a random model of a shape of make_test_models.py, made on first use."""
    if name == "luce-tiny":
        return TINY
    if name.endswith(".gguf"):
        return Path(name)
    folder = ROOT / "build" / "bench-models"
    maker = ROOT / "scripts" / "make_test_models.py"
    subprocess.run([sys.executable, str(maker), str(folder), "--shape", name], check=True, stdout=subprocess.DEVNULL)
    return folder / f"{name}.gguf"


def write_json(path: Path | None, value: object) -> None:
    if path is not None:
        path.write_text(json.dumps(value, indent=1) + "\n")


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """For the JSON."""
    return json.loads(json.dumps(vars(args), default=str))  # type: ignore[no-any-return]
