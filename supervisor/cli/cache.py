"""`luce cache`: what a folder of --disk-cache holds of conversations, and how to be rid of it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from luce.supervisor.cli.entry import EXIT_BAD_ARGS, EXIT_OK, EXIT_REFUSED, Failure, say
from luce.supervisor.cli.numbers import format_bytes
from luce.supervisor.cli.output import print_tables, write_output
from luce.supervisor.models.disk_cache import CacheFile, CacheGroup, grouped, list_files, remove

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F", bound=Callable[..., Any])

_AGE_S = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_EPILOG = """\b
Examples:
  luce cache ls --disk-cache ~/.cache/luce
  luce cache rm 3f0c --disk-cache ~/.cache/luce      # of one model, by the beginning of its name in `ls`
  luce cache rm --older-than 30d --disk-cache ~/.cache/luce
  luce cache purge --disk-cache ~/.cache/luce
"""


class Age(click.ParamType[float]):
    """Seconds, from 30m, 12h, 7d or 2w."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(r"([0-9]{1,6})([mhdw])", str(value))
        if match is None:
            self.fail(f"{value!r} is no age: 30m, 12h, 7d or 2w are some", param, ctx)
        return float(int(match[1]) * _AGE_S[match[2]])


def _folder_option(function: F) -> F:
    return click.option(
        "--disk-cache",
        "folder",
        type=click.Path(path_type=Path),
        envvar="LUCE_DISK_CACHE",
        required=True,
        metavar="DIR",
        help="The folder that `luce serve --disk-cache` names, or LUCE_DISK_CACHE.",
    )(function)


@click.group("cache", epilog=_EPILOG)
def command() -> None:
    """See and remove what a disk cache holds of conversations: pages and checkpoints of each model, and answers.

    A server that runs may go on: what has gone is read anew.
    """


@command.command("ls")
@_folder_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the table.")
def show(folder: Path, as_json: bool) -> int:
    """List the cached data by model. Each number format of a model's cache has its own name."""
    groups = grouped(_files(folder))
    if as_json:
        found = {"folder": str(folder), "groups": [asdict(group) for group in groups]}
        write_output(json.dumps(found).encode() + b"\n")
    else:
        print_tables(lambda console: _print(console, groups))
    return EXIT_OK


@command.command("rm")
@click.argument("name", required=False)
@_folder_option
@click.option("--older-than", type=Age(), metavar="AGE", help="Only files not used for this long: 12h, 30d.")
def remove_some(name: str | None, folder: Path, older_than: float | None) -> int:
    """Delete the cached data of the model NAME (a prefix suffices; `answers` for the answers), or old data."""
    if name is None and older_than is None:
        raise Failure("name a model as `luce cache ls` shows it, or say --older-than", EXIT_BAD_ARGS)
    files = _files(folder)
    if name is not None:
        found = sorted({file.group for file in files if file.group.startswith(name)})
        if len(found) != 1:
            said = f"{folder} has nothing of {name!r}"
            if found:
                said = f"{len(found)} names in {folder} begin with {name!r}"
            raise Failure(f"{said}: `luce cache ls` shows them", EXIT_REFUSED)
        files = [file for file in files if file.group == found[0]]
    if older_than is not None:
        files = [file for file in files if file.used_s < time.time() - older_than]
    _remove(files)
    return EXIT_OK


@command.command("purge")
@_folder_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(folder: Path, yes: bool) -> int:
    """Delete all cached data. Other files in the folder stay."""
    files = _files(folder)
    if files and not yes:
        click.confirm(f"Remove {_amount(files)} from {folder}?", abort=True, err=True)
    _remove(files)
    return EXIT_OK


def _files(folder: Path) -> list[CacheFile]:
    try:
        return list(list_files(folder))
    except OSError as error:
        raise Failure(f"--disk-cache {error.filename or folder}: {error.strerror}", EXIT_REFUSED) from None


def _remove(files: list[CacheFile]) -> None:
    n_bytes = remove(files)
    say(f"removed {_amount(files)}: {format_bytes(n_bytes)} are free")


def _amount(files: list[CacheFile]) -> str:
    return f"{len(files):,} files of {format_bytes(sum(file.n_bytes for file in files))}"


def _print(console: Console, groups: list[CacheGroup]) -> None:
    from rich.table import Table

    table = Table("name", "files", "pages", "size", "oldest use", "latest use")
    for column in table.columns[1:4]:
        column.justify = "right"
    for group in groups:
        table.add_row(
            group.name[:12],
            f"{group.n_files:,}",
            f"{group.n_pages:,}",
            format_bytes(group.n_bytes),
            *(time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) for at in (group.first_used_s, group.last_used_s)),
        )
    console.print(table)
