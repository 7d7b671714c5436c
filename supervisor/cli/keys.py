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
  kill -HUP PID                  # a running server (luce ps shows its PID) reads the file again
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
    help="File to which the key's table is added; created if missing. Default: print the table.",
)
@click.option(
    "--scope",
    type=click.Choice(["infer", "admin"]),
    default="infer",
    help="infer: may request answers; admin: also metrics, status, saved slots, memory. Default: infer.",
)
@click.option("--requests-per-minute", type=_LIMIT, metavar="N", help="Limit for this key. Default: none.")
@click.option(
    "--tokens-per-minute",
    type=_LIMIT,
    metavar="N",
    help="Limit of computed tokens: uncached prompt tokens, and answers. Default: none.",
)
@click.option("--max-lanes", type=_LIMIT, metavar="N", help="Limit of simultaneous answers. Default: none.")
@click.option(
    "--max-context",
    type=_LIMIT,
    metavar="N",
    help="Maximum tokens of a prompt with its answer. Default: the server's context.",
)
def new(name: str, file: Path | None, scope: str, **limits: int | None) -> None:
    """Make a key, show it once, and store its hash with its limits.

    The key goes only to standard output. The file holds its hash, so the key cannot be shown again.
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
