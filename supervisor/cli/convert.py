"""`luce convert`: a DFlash drafter's checkpoint becomes a GGUF file. Presents; the work is conversion's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from luce.supervisor.cli.entry import EXIT_OK, EXIT_REFUSED, Failure
from luce.supervisor.cli.numbers import format_bytes
from luce.supervisor.cli.output import print_tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from luce.supervisor.conversion import Conversion, OutputType, Prepared

_EPILOG = """\b
Examples:
  luce convert Qwen3-8B-DFlash-b16 --target Qwen3-8B-Q4_K_M.gguf
      writes Qwen3-8B-DFlash-b16/draft-bf16.gguf, which --draft Qwen3-8B-DFlash-b16 then finds
  luce convert drafter --target model.gguf --type q8_0 --out drafter-q8_0.gguf
  luce serve --model model.gguf --draft drafter-q8_0.gguf

\b
--draft also accepts the checkpoint's folder and converts it once, to q8_0.
Exit codes: 0 done, 1 the checkpoint or the output file is refused, 64 bad arguments.
"""


@click.command("convert", epilog=_EPILOG)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--target",
    metavar="DIR|GGUF",
    type=click.Path(path_type=Path),
    help="The drafter's model: a GGUF file or a Hugging Face folder. Its vocabulary goes into the result, and the"
    " drafter is checked against it. Default: the vocabulary beside the checkpoint, if any.",
)
@click.option(
    "--type",
    "type_name",
    type=click.Choice(["bf16", "q8_0"]),
    default="bf16",
    show_default=True,
    help="Number format of matrices. bf16 keeps most checkpoints bit by bit; q8_0 takes half the memory and drafts"
    " faster.",
)
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File for the result, replaced after success. Default: draft-TYPE.gguf in DIR.",
)
def command(folder: Path, target: Path | None, type_name: str, out: Path | None) -> int:
    """Convert the DFlash drafter in DIR (config.json and safetensors, as published on Hugging Face) to a GGUF file for
    --draft.

    Before writing, config.json is checked against the tensors: sizes, element types, target layers, mask token, block.
    A mismatch is refused with the file, the entry and the remedy.
    """
    from luce.supervisor.conversion import ConversionError, OutputType, prepare

    output_type = OutputType(type_name)
    try:
        prepared = prepare(folder, target)
        place = folder / f"draft-{type_name}.gguf" if out is None else out
        with _progress(prepared.n_source_bytes) as on_progress:
            conversion = prepared.write(place, output_type, on_progress)
    except ConversionError as error:
        raise Failure(str(error), EXIT_REFUSED) from error
    print_tables(lambda console: _print(console, prepared, conversion, output_type))
    return EXIT_OK


@contextmanager
def _progress(n_bytes: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal's stderr; elsewhere nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("converting"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=n_bytes)
        yield lambda n_done: progress.advance(task, n_done)


def _print(console: Console, prepared: Prepared, conversion: Conversion, output_type: OutputType) -> None:
    from rich.markup import escape
    from rich.table import Table

    from luce.supervisor.models.drafts import what_hinders

    config = prepared.config
    table = Table(title=escape(str(conversion.path)), show_header=False, title_justify="left")
    table.add_row("drafter", escape(prepared.name))
    table.add_row("parameters", f"{prepared.n_parameters:,}")
    table.add_row("layers", f"{config.n_layers}, hidden size {config.n_embd:,}")
    table.add_row("block", f"{config.block_size}: up to {config.block_size - 1} tokens are drafted at once")
    table.add_row("reads layers", ", ".join(str(layer) for layer in config.target_layer_ids))
    table.add_row("mask token", str(config.mask_token))
    table.add_row("vocabulary", f"{config.n_vocab:,} tokens, from {escape(str(prepared.target.path))}")
    if config.window is not None:
        n_windowed = sum(config.window.layers)
        table.add_row(
            "sliding window", f"{config.window.n_tokens:,} tokens, in {n_windowed} of {config.n_layers} layers"
        )
    table.add_row("rotation", f"base {prepared.rope_base:,.10g}")
    table.add_row("file", f"{format_bytes(conversion.n_bytes)}, {output_type.value}")
    console.print(table)
    unusable = (f"luced cannot run the result yet: {reason}" for reason, _ in what_hinders(prepared))
    for note in (*prepared.notes, *unusable):
        console.print(f"Note: {escape(note)}")
