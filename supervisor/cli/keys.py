"""`luce keys new`: makes an API key, and the table that lets it in."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from luce.supervisor.cli.entry import EXIT_BAD_ARGS, Failure, say
from luce.supervisor.cli.output import write_output
from luce.supervisor.config import ConfigError
from luce.supervisor.http.keys.key_file import keys_in, table_of
from luce.supervisor.private_file import behind_links, write_private

_PREFIX = "luce-"
_RANDOM_BYTES = 32

_LIMIT = click.IntRange(min=1)

_EPILOG = """\b
Examples:
  luce keys new alice --file keys.toml
  luce keys new ci --file keys.toml --requests-per-minute 60 --max-lanes 2
  luce keys new me --file keys.toml --scope admin
  luce serve --host 0.0.0.0 --api-keys keys.toml
  kill -HUP PID                  # a running server (luce ps shows its PID) reads the file anew
"""


@click.group("keys")
def command() -> None:
    """API keys for `luce serve --api-keys FILE`."""


@command.command("new", epilog=_EPILOG)
@click.argument("name")
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File to add the key's table to; it is made where there is none. Default: the table is shown.",
)
@click.option(
    "--scope",
    type=click.Choice(["infer", "admin"]),
    default="infer",
    help="infer: may ask for answers; admin: also metrics, status, saved slots, memory. Default: infer.",
)
@click.option("--requests-per-minute", type=_LIMIT, metavar="N", help="Default: any number.")
@click.option(
    "--tokens-per-minute",
    type=_LIMIT,
    metavar="N",
    help="Tokens that are computed: of prompts what is not in memory, and of answers. Default: any number.",
)
@click.option("--max-lanes", type=_LIMIT, metavar="N", help="Answers at once. Default: any number.")
@click.option(
    "--max-context",
    type=_LIMIT,
    metavar="N",
    help="Tokens of a prompt and its answer. Default: what the server has.",
)
def new(name: str, file: Path | None, scope: str, **limits: int | None) -> None:
    """Make a key, show it once, and write down its hash with what it may do.

    The key goes to standard output, and nowhere else: the file holds only its hash, and nobody can show it again.
    """
    key = f"{_PREFIX}{secrets.token_urlsafe(_RANDOM_BYTES)}"
    try:
        table = table_of(name, key, scope=scope, **limits)
        if file is not None:
            _add(file, name, table)
    except ConfigError as error:
        raise Failure(str(error), EXIT_BAD_ARGS) from None
    if file is None:
        say(table, nl=False)
    write_output(f"{key}\n".encode())


def _add(file: Path, name: str, table: str) -> None:
    """Raises ConfigError, and OSError."""
    file = behind_links(file)  # a pipe would be read for ever
    earlier = ""
    if file.exists():
        if any(known.name == name for known in keys_in(file)):
            raise ConfigError(f"{file} has a key named {name}: choose another name, or delete its table")
        text = file.read_text(encoding="utf-8").rstrip("\n")
        earlier = f"{text}\n\n" if text else ""
    write_private(file, (earlier + table).encode())
