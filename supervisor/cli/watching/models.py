"""`luce models`: the models of a server, or those whose files lie on this machine, as a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from luce.supervisor.cli.entry import EXIT_BAD_ARGS, EXIT_OK, EXIT_REFUSED, Failure
from luce.supervisor.cli.output import print_tables, safe, write_output
from luce.supervisor.cli.server_client import ServerError
from luce.supervisor.cli.servers import DEFAULT_URL, KEY_VARIABLE, named_server
from luce.supervisor.cli.watching.looking import others_running

if TYPE_CHECKING:
    from rich.table import Table

_ANSWER_S = 10.0
_EPILOG = """\b
Examples:
  luce models
  luce models --from huggingface --from ~/models
  luce serve --models-from huggingface
"""


@click.command("models", epilog=_EPILOG)
@click.option("--url", metavar="URL", help=f"Server to ask. Default: {DEFAULT_URL}.")
@click.option("--api-key", metavar="KEY", help=f"The server's key. Better in {KEY_VARIABLE}.")
@click.option(
    "--from",
    "places",
    multiple=True,
    metavar="PLACE",
    help="List models on this machine instead: huggingface, lmstudio, ollama, or a folder; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, url: str | None, api_key: str | None, places: Sequence[str], as_json: bool) -> int:
    """List a server's models, their state and their context length."""
    rows = _found(places) if places else _served(url, api_key)
    if as_json:
        write_output(json.dumps(rows, indent=2).encode() + b"\n")
        return EXIT_OK
    table = _table(rows, "There is no model." if places else "The server has no model.")
    print_tables(lambda console: console.print(table))
    return EXIT_OK


def _served(url: str | None, api_key: str | None) -> list[dict[str, Any]]:
    server = named_server("--url", url or DEFAULT_URL, KEY_VARIABLE, api_key)
    try:
        listed = server.look("/v1/models", _ANSWER_S).get("data")
    except ServerError as error:
        hint = others_running() if error.status is None else ""
        raise Failure(f"{error}{hint}", EXIT_REFUSED) from None
    models = [model for model in listed if isinstance(model, dict)] if isinstance(listed, list) else []
    return [
        {"model": model.get("id"), "state": model.get("state", "here"), "window": model.get("context_window")}
        for model in models
    ]


def _found(places: Sequence[str]) -> list[dict[str, Any]]:
    from luce.supervisor.models.finding import FindingError, find_models

    try:
        found = find_models(places)
    except FindingError as error:
        raise Failure(f"--from {error}", EXIT_BAD_ARGS) from None
    return [
        {"model": model.name, "bytes": model.path.stat().st_size, "file": str(model.path)}
        for model in sorted(found, key=lambda model: model.name)
    ]


def _table(rows: Sequence[dict[str, Any]], empty: str) -> Table:
    from rich.table import Table

    table = Table(box=None, title_justify="left")
    for name in rows[0] if rows else (empty,):
        table.add_column(name, justify="right" if name in {"window", "bytes"} else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    return table


def _cell(value: object) -> str:
    if value is None:
        return "not known yet"
    return f"{value:,}" if isinstance(value, int) else safe(str(value))
