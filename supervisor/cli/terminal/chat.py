"""`luce chat`: a conversation in the terminal, with a server that runs or with an engine of its own.

The engine of its own is a server too, on a port that nobody else knows the key of: one way to answer, not two. Whether
there is a server is found out before anything is typed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from luce.supervisor.cli.entry import EXIT_BAD_ARGS, EXIT_REFUSED, Failure, say
from luce.supervisor.cli.input import read_file, utf8, utf8_argument
from luce.supervisor.cli.options import NOT_NEGATIVE, engine_options, read_sampling, sampling_options
from luce.supervisor.cli.server_client import ServerClient, ServerError
from luce.supervisor.cli.servers import (
    DEFAULT_URL,
    KEY_VARIABLE,
    UNNAMED_MODEL,
    end_by_signals,
    engine_arguments,
    models_at,
    named_server,
    own_server,
)
from luce.supervisor.cli.terminal.branches import Branches
from luce.supervisor.cli.terminal.conversation import Conversation
from luce.supervisor.cli.terminal.screen import Terminal, is_terminal
from luce.supervisor.cli.terminal.talk import Talk
from luce.supervisor.cli.watching.looking import others_running


@click.command("chat")
@click.option("--url", metavar="URL", help=f"Server to chat with. Default: {DEFAULT_URL}.")
@click.option(
    "--api-key", metavar="KEY", help=f"The server's key. Better in {KEY_VARIABLE}, which no list of processes shows."
)
@click.option(
    "--own",
    is_flag=True,
    help="Start an engine for this chat; implied by engine options such as --model.",
)
@click.option("--name", "model_name", metavar="NAME", help="Name of the server's model to use. Default: the first one.")
@click.option("--system", metavar="TEXT", help="The system message, which precedes the conversation.")
@click.option(
    "--tools",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="JSON file with a list of tools, in the form of chat completions. You type the results of calls.",
)
@click.option(
    "-n", "n", type=NOT_NEGATIVE, metavar="N", help="Maximum tokens of an answer. Default: as many as fit the context."
)
@click.option(
    "--markdown/--no-markdown",
    default=True,
    help="Format answers as Markdown (in a terminal), or show them raw.",
)
@click.option(
    "--history",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File for the input history of the arrow keys; /dev/null keeps nothing. Default: chat_history in"
    " ~/.local/state/luce-daemon, readable only by you.",
)
@engine_options
@sampling_options
@click.pass_context
def command(context: click.Context, /, **values: Any) -> int:
    """Chat with a model in the terminal; /help lists the commands.

    It uses a running server, or offers to start one. Enter sends, Alt-Enter begins another line, Tab completes, and the
    arrow keys recall earlier input. /file sends a text file, /branch tries another continuation from any turn; the
    shared part is not read again.

    If stdin is not a terminal, each line is a turn; answers go to stdout, all else to stderr.
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
        server = None if own else _running_server(values["url"], values["api_key"])
        if server is None:
            server = stack.enter_context(own_server(["--log-level", "warn", "--lanes", "1", *engine]))
        branches = Branches(Conversation(values["system"]))
        terminal = _open_terminal(branches, values)
        name = values["model_name"] or _first_model(server)
        if terminal.is_terminal:
            terminal.note(f"{name or 'a model'} at {server.url}; /help shows what else can be typed")
        options["model"] = name or UNNAMED_MODEL
        return Talk(server, terminal, options, branches).run()


def _running_server(url: str | None, key: str | None) -> ServerClient | None:
    """One that answers. None: there is none, and the user wants one for this chat. Raises Failure."""
    server = named_server("--url", url or DEFAULT_URL, KEY_VARIABLE, key)
    try:
        models_at(server)
    except ServerError as error:
        if error.status is not None:  # it is there, and wants a key, say
            raise Failure(str(error), EXIT_REFUSED) from None
        if is_terminal():
            say(f"{error}{others_running()}")
            if click.confirm("Start one for this chat, with the packaged model?", default=True, err=True):
                return None
            raise Failure("`luce chat --model FILE` starts one with another model", EXIT_REFUSED) from None
        own = ", or talk to one of its own with `luce chat --own`"
        raise Failure(f"{error}{own}{others_running()}", EXIT_REFUSED) from None
    return server


def _first_model(server: ServerClient) -> str | None:
    try:
        return next(iter(models_at(server)), None)
    except ServerError as error:  # it has just been there
        raise Failure(str(error), EXIT_REFUSED) from None


def _open_terminal(branches: Branches, values: Mapping[str, Any]) -> Terminal:
    if not is_terminal():
        return Terminal(None)
    from luce.supervisor.cli.terminal.editor import default_history, open_editor

    editor = open_editor(values["history"] or default_history(), lambda: branches.names)
    return Terminal(editor, lays_out=values["markdown"])


def _request_options(values: Mapping[str, Any]) -> dict[str, Any]:
    options = {
        **asdict(read_sampling({**values, "seed": None})),
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
