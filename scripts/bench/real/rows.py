"""What a cell of docs/benchmarks/real.md is: rows about one model on one machine, kept as JSON, and what all cells
measure with. It must not know what is measured.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from scripts.bench.harness import ROOT

NAMES = {"smollm": "SmolLM2-135M-Instruct", "qwen": "Qwen2.5-Coder-0.5B-Instruct", "gemma": "Gemma 3 270M"}


@dataclass(frozen=True)
class Row:
    """One measured figure. `ours` and `theirs` are in `unit`; a row without a peer has no `theirs`."""

    what: str
    ours: float
    theirs: float | None = None
    unit: str = ""
    aim: str = ""
    """In words, with its number: "<= 1.03"."""
    is_met: bool | None = None
    """None: the row has no aim."""
    note: str = ""
    """Where an aim is missed: why."""


@dataclass(frozen=True)
class Setup:
    """One model, and what every side runs with."""

    name: str
    """A key of NAMES, or a GGUF file's name."""
    model: Path
    luced: Path
    server: Path | None
    """llama-server of the same llama.cpp; None: rows of a peer are left out."""
    gpu_layers: int
    threads: int
    cache_type: str
    ubatch: int
    quick: bool

    @property
    def engine(self) -> Namespace:
        """What harness.luced_arguments and llama_server_arguments read."""
        return Namespace(
            ubatch=self.ubatch, threads=self.threads, gpu_layers=self.gpu_layers, cache_type=self.cache_type
        )

    @cached_property
    def machine(self) -> str:
        if self.gpu_layers:
            query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
            return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
        model = next((line.partition(":")[2].strip() for line in _cpu_info() if line.startswith("model name")), "")
        return f"{model or platform.machine()}, {self.threads} thread{'s' * (self.threads > 1)}"


def _cpu_info() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def model_of(name: str) -> Path:
    """A GGUF file, or one of NAMES, fetched on first use. Ends the program where that fails."""
    if name.endswith(".gguf"):
        return Path(name)
    script = [sys.executable, str(ROOT / "scripts" / "real_models"), name]
    done = subprocess.run(script, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"the model {name} could not be fetched")
    return Path(done.stdout.split()[-1])


def write_cell(folder: Path, cell: str, setup: Setup, rows: Iterable[Row]) -> Path:
    """One file a cell, model and machine: a later run takes an earlier one's place."""
    folder.mkdir(parents=True, exist_ok=True)
    place = "gpu" if setup.gpu_layers else "cpu"
    path = folder / f"{cell}-{setup.name}-{place}.json"
    head = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True, check=False).stdout
    path.write_text(
        json.dumps(
            {
                "cell": cell,
                "model": NAMES.get(setup.name, setup.name),
                "machine": setup.machine,
                "commit": commit.strip(),
                "cache_type": setup.cache_type,
                "quick": setup.quick,
                "rows": [asdict(row) for row in rows],
            },
            indent=1,
        )
        + "\n"
    )
    return path
