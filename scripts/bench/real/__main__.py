"""Real, trained models: what docs/benchmarks/real.md shows, cell by cell, beside llama-server of the same build.

    python -m scripts.bench.real service speculation --models smollm qwen --vs build/release/bin/llama-server

Each cell is a module of this folder with `measure(setup) -> list[Row]`. Results are JSON files in --out, one for each
cell, model and machine.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from luce.supervisor.config import engine_environment
from scripts.bench.harness import ROOT, parser_of
from scripts.bench.real.rows import NAMES, Row, Setup, model_of, write_cell

CELLS = {
    "noise": "how far log-probabilities move: llama.cpp's own, ours in every way back",
    "speculation": "drafts by kind of text, against plain and against llama-server",
    "bounded": "needles and perplexity in a pool of a quarter and an eighth",
    "sparse": "sparse prefill and compress: questions and first token",
    "formats": "number formats of the cache and outside the device",
    "agents": "agents' loops with tools over all four APIs: tokens read anew, calls parsed and leaked",
    "service": "load to ready, memory, decoding and prompts by depth, lanes",
}


def show(console: Console, title: str, rows: Sequence[Row]) -> None:
    table = Table("", "ours", "llama-server", "", "aim", "met", title=title)
    for row in rows:
        theirs = "" if row.theirs is None else f"{row.theirs:.4g}"
        met = {None: "", True: "yes", False: f"no: {row.note}"}[row.is_met]
        table.add_row(row.what, f"{row.ours:.4g}", theirs, row.unit, row.aim, met)
    console.print(table)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, model=None, has_peer=True, has_quick=True)
    listed = "; ".join(f"{name}: {about}" for name, about in CELLS.items())
    parser.add_argument("cells", nargs="+", choices=[*CELLS, "all"], metavar="CELL", help=listed)
    parser.add_argument(
        "--models", nargs="+", default=list(NAMES), metavar="NAME", help="smollm, qwen, gemma or a file"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "real", metavar="DIR")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_arguments(arguments)
    os.environ.update(engine_environment(os.environ))  # what the supervisor starts luced with, for all sides
    console = Console(width=None if sys.stdout.isatty() else 160)
    for name in args.models:
        path = model_of(name)
        setup = Setup(
            name if name in NAMES else path.stem, path, args.luced, args.vs, args.gpu_layers, args.threads,
            args.cache_type, args.ubatch, args.quick,
        )  # fmt: skip
        for cell in CELLS if "all" in args.cells else args.cells:
            measure: Callable[[Setup], list[Row]] = importlib.import_module(f"scripts.bench.real.{cell}").measure
            rows = measure(setup)
            show(console, f"{cell}, {NAMES.get(setup.name, setup.name)}, {setup.machine}", rows)
            console.print(f"[dim]{write_cell(args.out, cell, setup, rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
