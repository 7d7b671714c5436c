"""`luce chat`: a conversation in the terminal, with a server that runs or with an engine of its own.

The engine of its own is a server too, on a port that nobody else knows the key of: one way to answer, not two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from luce.supervisor.cli.chat_conversation import Conversation
from luce.supervisor.cli.chat_talk import Talk
from luce.supervisor.cli.chat_terminal import Terminal
from luce.supervisor.cli.entry import EXIT_BAD_ARGS, Failure
from luce.supervisor.cli.input import read_file, utf8, utf8_argument
from luce.supervisor.cli.options import NOT_NEGATIVE, engine_options, read_sampling, sampling_options
from luce.supervisor.cli.servers import end_by_signals, engine_arguments, named_server, own_server

_DEFAULT_URL = "http://127.0.0.1:8080"
_KEY_VARIABLE = "LUCE_API_KEY"
_NO_MODEL = "default"  # a server answers under any name


@click.command("chat")
@click.option("--url", metavar="URL", help=f"Server to talk to. Default: {_DEFAULT_URL}.")
@click.option(
    "--api-key", metavar="KEY", help=f"The server's key. Better in {_KEY_VARIABLE}, which no list of processes shows."
)
@click.option(
    "--own",
    is_flag=True,
    help="Talk to an engine of its own, gone when the chat is; so does any option of the engine, --model first of all.",
)
@click.option("--system", metavar="TEXT", help="The system message, which comes before all others.")
@click.option(
    "--tools",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="JSON list of tools that the model may call, as chat completions have them. You type what a call gives.",
)
@click.option(
    "-n", "n", type=NOT_NEGATIVE, metavar="N", help="Most tokens of an answer. Default: as there is room for."
)
@engine_options
@sampling_options
@click.pass_context
def command(context: click.Context, /, **values: Any) -> int:
    """Talk to a model in the terminal: /help shows what else can be typed.

    Where stdin is no terminal, each line is a turn; answers go to stdout, all else to stderr.
    """
    engine = engine_arguments(context)
    own = values["own"] or bool(engine)
    if own and (values["url"] is not None or values["api_key"] is not None):
        raise click.UsageError(f"{(engine or ['--own'])[0]} starts an engine of its own: leave --url and --api-key out")
    if values["system"] is not None:
        utf8_argument(values["system"], "--system")
    options = _request_options(values)
    end_by_signals()
    with ExitStack() as stack:
        if own:
            server = stack.enter_context(own_server(["--log-level", "warn", "--lanes", "1", *engine]))
        else:
            server = named_server("--url", values["url"] or _DEFAULT_URL, _KEY_VARIABLE, values["api_key"])
        return Talk(server, Terminal(), options, Conversation(values["system"])).run()


def _request_options(values: Mapping[str, Any]) -> dict[str, Any]:
    options = {
        **asdict(read_sampling({**values, "seed": None})),
        "model": _NO_MODEL,
        "max_tokens": values["n"],
        "tools": None if values["tools"] is None else _read_tools(values["tools"]),
    }
    return {name: value for name, value in options.items() if value not in (None, ())}


def _read_tools(file: Path) -> list[Any]:
    try:
        tools = json.loads(utf8(read_file(file), str(file)))
    except (ValueError, RecursionError) as error:
        raise Failure(f"--tools {file} is not JSON: {error}", EXIT_BAD_ARGS) from None
    if not isinstance(tools, list):
        raise Failure(f"--tools {file}: it must be a list of tools", EXIT_BAD_ARGS)
    return tools
