"""What machine measures: its processor, memory, GPUs and driver, as luced and the system say. Knows no model; says
nothing that tells one machine from another of its kind.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from luce.supervisor.cli.entry import EXIT_START_FAILED, Failure
from luce.supervisor.cli.fieldtest.report import Gpu, Machine

_TIMEOUT_S = 60.0
_DEVICE = re.compile(r"device kind=(?P<kind>\w+) name=\S+ total_bytes=(?P<total>\d+)(?: \w+=\d+)* (?P<name>.*)")


def luced_says(binary: Path) -> list[str]:
    """Its version, that of llama.cpp, and the devices. Raises Failure."""
    try:
        said = subprocess.run(
            [str(binary), "--version"], capture_output=True, encoding="utf-8", errors="replace", timeout=_TIMEOUT_S,
            check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise Failure(f"luced does not run: {error}", EXIT_START_FAILED) from None
    return said.stdout.splitlines()


def look_at_machine(said: list[str]) -> Machine:
    """`said`: by luced."""
    devices = [found for line in said if (found := _DEVICE.fullmatch(line))]
    gpus = [found for found in devices if found["kind"] in {"gpu", "igpu"}]
    cpu = next((found["name"] for found in devices if found["kind"] == "cpu"), platform.processor())
    n_cpus = psutil.cpu_count() or 1
    return Machine(
        system=platform.system(),
        architecture=platform.machine(),
        cpu=cpu,
        n_cpus=n_cpus,
        memory_bytes=psutil.virtual_memory().total,
        gpus=[Gpu(name=found["name"], memory_bytes=int(found["total"])) for found in gpus],
        driver=next(iter(_ask_nvidia("driver_version")), None),
        load=round(psutil.getloadavg()[0] / n_cpus, 2),
    )


def gpu_bytes_used() -> int | None:
    """Of all NVIDIA GPUs together; None: there is none, or it does not say."""
    sizes = _ask_nvidia("memory.used")
    return sum(int(size) << 20 for size in sizes) if sizes and all(size.isdigit() for size in sizes) else None


def process_bytes() -> int | None:
    """Of what this process has started: proportional set sizes. None: the system does not say."""
    whole = 0
    for child in psutil.Process().children(recursive=True):
        try:
            whole += child.memory_full_info().pss
        except (psutil.Error, AttributeError):
            return None
    return whole or None


def busy_s() -> float:
    """Processor time of what this process has started, as far as it still runs."""
    whole = 0.0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            whole += times.user + times.system
    return whole


def _ask_nvidia(what: str) -> list[str]:
    """For each card."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in said.splitlines()]
