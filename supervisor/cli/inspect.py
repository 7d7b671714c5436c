"""`luce inspect`: what a model file is and what it costs, as a table. Presents; the arithmetic is model_memory's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from luce.supervisor.cli import inspect_plan
from luce.supervisor.cli.entry import EXIT_OK, EXIT_REFUSED, Failure
from luce.supervisor.cli.inspect_plan import Card
from luce.supervisor.cli.numbers import Bytes, Tokens, format_bytes
from luce.supervisor.cli.output import print_tables, write_output

if TYPE_CHECKING:
    from rich.console import Console

    from luce.supervisor.models.model_memory import ModelMemory


@click.command("inspect")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--memory",
    type=Bytes(),
    metavar="SIZE",
    help="Memory, such as 24G, for which the longest context is computed. Default: this machine's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the tables.")
@click.option("--plan", is_flag=True, help="Show the plan of --fit: what lies on the GPU and what in host memory.")
@click.option(
    "--gpu",
    "gpus",
    type=Bytes(),
    multiple=True,
    metavar="SIZE",
    help="With --plan: a GPU with this much memory, such as 24G; repeat for several. Default: this machine's.",
)
@click.option("--host", type=Bytes(), metavar="SIZE", help="With --plan: a host with this much free memory.")
@click.option("--ctx", type=Tokens(min=1), metavar="TOKENS", help="With --plan: as luce serve --ctx.")
@click.option("--lanes", type=click.IntRange(1, 256), metavar="N", help="With --plan: as luce serve --lanes.")
@click.option("--draft", type=click.Path(path_type=Path), help="With --plan: a drafter that lies beside it.")
def command(
    model: Path,
    memory: int | None,
    as_json: bool,
    plan: bool,
    gpus: tuple[int, ...],
    host: int | None,
    ctx: int | None,
    lanes: int | None,
    draft: Path | None,
) -> int:
    """Show MODEL (a GGUF file): its architecture, its layers by kind, the cache's memory per token by number format,
    and the context that fits a given memory.

    The context is computed for one lane: memory minus weights, the lane's fixed share and estimated buffers, divided by
    the bytes per token.

    With --plan: where `luce serve` would put weights, cache and buffers, on this machine or another, without loading.

    \b
      luce inspect m.gguf --plan --gpu 24G --host 64G
      luce inspect m.gguf --plan --gpu 8G --ctx 65536 --lanes 2
    """
    import psutil

    from luce.supervisor.models.gguf_header import GgufError, read_gguf_header
    from luce.supervisor.models.model_memory import model_memory

    given = {"--ctx": ctx, "--lanes": lanes, "--draft": draft}
    options = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    if plan:
        card = Card(gpus, host) if gpus or host is not None else None
        inspect_plan.show(model, inspect_plan.make_plan(model, card, options), as_json)
        return EXIT_OK
    if gpus or host is not None or options:
        raise click.UsageError("--gpu, --host, --ctx, --lanes and --draft go with --plan")
    try:
        account = model_memory(read_gguf_header(model))
    except GgufError as error:
        text = str(error)
        raise Failure(text if text.startswith(str(model)) else f"{model}: {text}", EXIT_REFUSED) from error
    budget = psutil.virtual_memory().total if memory is None else memory
    if as_json:
        write_output((json.dumps(_as_json(account, budget), indent=2) + "\n").encode())
    else:
        print_tables(lambda console: _print_tables(console, model, account, budget))
    return EXIT_OK


def _as_json(account: ModelMemory, budget: int) -> dict[str, Any]:
    from luce.supervisor.models.model_memory import CACHE_TYPES, LayerKind

    return {
        "architecture": account.architecture,
        "name": account.name,
        "parameters": account.n_parameters,
        "weight_bytes": account.weight_bytes,
        "vocabulary": account.n_vocabulary,
        "context_trained": account.n_context_trained,
        "sliding_window": account.n_window,
        "layers": {kind.value: account.count(kind) for kind in LayerKind if account.count(kind) > 0},
        "memory_bytes": budget,
        "recurrent_state_bytes": account.recurrent_bytes,
        "rollback_states": account.n_rollback,
        "working_bytes_estimate": account.working_bytes,
        "cache": {
            cache_type: {
                "bytes_per_token": account.bytes_per_token(cache_type),
                "bytes_per_lane": account.bytes_per_lane(cache_type),
                "context_that_fits": account.context_in(budget, cache_type),
            }
            for cache_type in CACHE_TYPES
        },
        "notes": list(account.notes),
    }


def _print_tables(console: Console, model: Path, account: ModelMemory, budget: int) -> None:
    from rich.markup import escape
    from rich.table import Table

    from luce.supervisor.models.model_memory import CACHE_TYPES, LayerKind

    layers = ", ".join(f"{account.count(kind)} {kind.value}" for kind in LayerKind if account.count(kind) > 0)
    about = Table(title=escape(model.name), show_header=False, title_justify="left")
    about.add_row("architecture", escape(account.architecture + (f" ({account.name})" if account.name else "")))
    about.add_row("parameters", f"{account.n_parameters:,}")
    about.add_row("weights", format_bytes(account.weight_bytes))
    about.add_row("layers", f"{len(account.layers)}: {layers}")
    if account.n_window > 0:
        about.add_row("sliding window", f"{account.n_window:,} tokens")
    if account.recurrent_bytes > 0:
        cost = format_bytes(account.recurrent_bytes)
        about.add_row(
            "recurrent state", f"{cost} a lane, and {account.n_rollback} more for drafts (--draft-state-memory)"
        )
    about.add_row("trained context", f"{account.n_context_trained:,} tokens")
    about.add_row("vocabulary", f"{account.n_vocabulary:,} tokens")
    console.print(about)
    costs = Table(title=f"Memory of a text, and what fits into {format_bytes(budget)}", title_justify="left")
    for heading in ("cache type", "a token", "a lane, fixed", "longest text"):
        costs.add_column(heading, justify="left" if heading == "cache type" else "right")
    for cache_type in CACHE_TYPES:
        costs.add_row(
            cache_type,
            format_bytes(account.bytes_per_token(cache_type)),
            format_bytes(account.bytes_per_lane(cache_type)),
            _fits(account, budget, cache_type),
        )
    console.print(costs)
    for note in account.notes:
        console.print(f"Note: {escape(note)}")


def _fits(account: ModelMemory, budget: int, cache_type: str) -> str:
    n_tokens = account.context_in(budget, cache_type)
    if n_tokens is None:
        return "any"
    if n_tokens == 0:
        return "nothing fits"
    beyond = " (beyond training)" if n_tokens > account.n_context_trained else ""
    return f"{n_tokens:,}{beyond}"
