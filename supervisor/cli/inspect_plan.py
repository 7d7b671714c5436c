"""`luce inspect --plan`: what would lie where on a card, here or only thought of. Asks luced, which plans; presents."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from luce.supervisor.cli.entry import EXIT_REFUSED, EXIT_START_FAILED, Failure
from luce.supervisor.cli.numbers import format_bytes
from luce.supervisor.cli.options import read_binary
from luce.supervisor.cli.output import print_tables, write_output

if TYPE_CHECKING:
    from rich.console import Console

DRIVER_BYTES = 600 << 20
"""Of a card's memory: what its driver and CUDA's context take before a program has any."""

_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Card:
    """A machine that is only thought of. Bytes."""

    gpus: tuple[int, ...]
    host: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What luced says. Bytes; gpu_bytes are free ones, of all GPUs together."""

    gpus: int
    gpu_bytes: int
    reserve_bytes: int
    layers: int
    gpu_layers: int
    """With the output as one more."""
    expert_layers_on_host: int
    expert_memory: int
    """Of the GPU, where it reads the other experts from the host's memory; 0: it does not."""
    expert_lendable: int
    """Of that, until the context fills: the cache gets it then."""
    ctx: int
    cache_type_k: str
    cache_type_v: str
    gpu_weights: int
    gpu_cache: int
    gpu_compute: int
    gpu_beside: int
    host_weights: int
    host_cache: int
    fits_host: int

    @property
    def gpu_used(self) -> int:
        return self.gpu_weights + self.gpu_cache + self.gpu_compute + self.gpu_beside

    @classmethod
    def parse(cls, line: str) -> Plan:
        """Raises ValueError: it is no plan, or that of another version."""
        word, *parts = line.split()
        fields = dict(part.split("=", 1) for part in parts)
        if word != "plan" or fields.keys() != cls.__annotations__.keys():
            raise ValueError(f"luced says {line!r}, which is no plan that this version knows")
        texts = {"cache_type_k", "cache_type_v"}
        return cls(**{name: value if name in texts else int(value) for name, value in fields.items()})  # type: ignore[arg-type]


def make_plan(model: Path, card: Card | None, options: Sequence[str] = ()) -> Plan:
    """`options`: further ones of luced. Raises Failure."""
    command = [str(read_binary()), "--model", str(model), "--log-level", "error", "--plan", *options]
    if card is not None and card.gpus:
        command += ["--plan-gpus", ",".join(str(max(size - DRIVER_BYTES, 0)) for size in card.gpus)]
    if card is not None and card.host is not None:
        command += ["--plan-host", str(card.host)]
    try:
        said = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failure(f"luced does not run: {error}", EXIT_START_FAILED) from error
    answer = said.stdout.strip()
    if said.returncode != 0 or not answer:
        reason = answer.removeprefix("err start_failed ") or said.stderr.strip() or f"exit status {said.returncode}"
        raise Failure(reason.replace("--plan-gpus", "--gpu"), EXIT_REFUSED)
    try:
        return Plan.parse(answer)
    except ValueError as error:
        raise Failure(str(error), EXIT_START_FAILED) from error


def show(model: Path, plan: Plan, as_json: bool) -> None:
    if as_json:
        fields = {name: getattr(plan, name) for name in plan.__annotations__}
        write_output((json.dumps({**fields, "gpu_used": plan.gpu_used}, indent=2) + "\n").encode())
    else:
        print_tables(lambda console: _print(console, model, plan))


def _print(console: Console, model: Path, plan: Plan) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"What lies where: {escape(model.name)}", title_justify="left")
    table.add_column("")
    for heading in ("GPU" if plan.gpus == 1 else f"{plan.gpus} GPUs", "host"):
        table.add_column(heading, justify="right")
    for what, gpu, host in (
        ("weights", plan.gpu_weights, plan.host_weights),
        (f"cache of {plan.ctx:,} tokens", plan.gpu_cache, plan.host_cache),
        ("buffers for computing", plan.gpu_compute, 0),
        ("other models", plan.gpu_beside, 0),
    ):
        if gpu or host:
            table.add_row(what, format_bytes(gpu), format_bytes(host))
    table.add_section()
    table.add_row("together", format_bytes(plan.gpu_used), format_bytes(plan.host_weights + plan.host_cache))
    table.add_row("left free", format_bytes(max(plan.gpu_bytes - plan.gpu_used, 0)), "")
    console.print(table)
    for line in _in_words(plan):
        console.print(line)


def _in_words(plan: Plan) -> list[str]:
    n_on_gpu = max(plan.gpu_layers - 1, 0)
    lines = [f"{n_on_gpu} of {plan.layers} layers on the GPU, the cache in {plan.cache_type_k} / {plan.cache_type_v}."]
    if plan.expert_memory:
        lines.append(
            f"The experts used most lie in {format_bytes(plan.expert_memory)} of the GPU, which reads the others from"
            " the host's memory (--expert-memory)."
        )
    if plan.expert_lendable:
        lines.append(f"The cache gets {format_bytes(plan.expert_lendable)} of it while the context is full.")
    if plan.expert_layers_on_host:
        lines.append(f"The experts of {plan.expert_layers_on_host} layers stay in the host's memory (--n-cpu-moe).")
    if not plan.fits_host:
        lines.append("[red]The host's part is more than the host has.[/]")
    lines.append("luce serve starts like this by itself (--fit on); each option given to it is kept.")
    return lines
