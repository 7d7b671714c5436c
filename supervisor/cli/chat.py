"""`luce chat`: a conversation in the terminal, with a server that runs or with an engine of its own.

The engine of its own is a server too, on a port that nobody else knows the key of: one way to answer, not two.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from luce.supervisor.cli.chat_background import Background
from luce.supervisor.cli.chat_client import ChatClient, server_url
from luce.supervisor.cli.chat_conversation import Conversation
from luce.supervisor.cli.chat_input import Lines
from luce.supervisor.cli.chat_screen import Screen
from luce.supervisor.cli.chat_talk import Talk
from luce.supervisor.cli.entry import EXIT_BAD_ARGS, EXIT_START_FAILED, Failure, say
from luce.supervisor.cli.input import read_file, utf8, utf8_argument
from luce.supervisor.cli.options import (
    NOT_NEGATIVE,
    engine_options,
    read_engine_config,
    read_sampling,
    sampling_options,
)
from luce.supervisor.config import ConfigError, DaemonConfig, SupervisorConfig

if TYPE_CHECKING:
    from types import FrameType

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
    engine = [name for name in _engine_names() if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    own = values["own"] or bool(engine)
    if own and (values["url"] is not None or values["api_key"] is not None):
        flag = f"--{engine[0].replace('_', '-')}" if engine else "--own"
        raise click.UsageError(f"{flag} starts an engine of its own: leave --url and --api-key out")
    if values["system"] is not None:
        utf8_argument(values["system"], "--system")
    options = _request_options(values)
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGHUP, _leave)
    screen = Screen()
    with Background(lambda: _own(values) if own else _server(values)) as background:
        talk = Talk(background, screen, Lines(is_terminal=screen.is_terminal), options)
        return talk.run(Conversation(values["system"]))


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    sys.exit(128 + number)  # by way of everything that was started


def _engine_names() -> list[str]:
    own = {"url", "api_key", "own", "system", "tools", "n"}
    sampling = {"temp", "top_k", "top_p", "min_p", "repeat", "presence", "frequency"}
    return [option.name for option in command.params if option.name and option.name not in own | sampling]


def _request_options(values: Mapping[str, Any]) -> dict[str, Any]:
    sampling = read_sampling({**values, "seed": None})
    options = {
        "model": _NO_MODEL,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "max_tokens": values["n"],
        "tools": None if values["tools"] is None else _read_tools(values["tools"]),
    }
    return {name: value for name, value in options.items() if value is not None}


def _read_tools(file: Path) -> list[Any]:
    try:
        tools = json.loads(utf8(read_file(file), str(file)))
    except (ValueError, RecursionError) as error:
        raise Failure(f"--tools {file} is not JSON: {error}", EXIT_BAD_ARGS) from None
    if not isinstance(tools, list):
        raise Failure(f"--tools {file}: it must be a list of tools", EXIT_BAD_ARGS)
    return tools


@asynccontextmanager
async def _server(values: Mapping[str, Any]) -> AsyncIterator[ChatClient]:
    import aiohttp

    try:
        url = server_url(values["url"] or _DEFAULT_URL)
    except ValueError as error:
        raise Failure(f"--url {error}", EXIT_BAD_ARGS) from None
    async with aiohttp.ClientSession() as session:
        yield ChatClient(session, url, values["api_key"] or _first_key(os.environ.get(_KEY_VARIABLE, "")))


def _first_key(keys: str) -> str | None:
    """The variable may hold a server's keys: any of them lets in."""
    return next((key.strip() for key in keys.split(",") if key.strip()), None)


@asynccontextmanager
async def _own(values: Mapping[str, Any]) -> AsyncIterator[ChatClient]:
    """Raises Failure."""
    import aiohttp

    from luce.supervisor.cli.serve_loading import loading_shown
    from luce.supervisor.engine.locate import NotInstalledError
    from luce.supervisor.engine.process import StartError
    from luce.supervisor.http.app import create_app
    from luce.supervisor.http.server import listening
    from luce.supervisor.http.settings import ServeSettings
    from luce.supervisor.supervisor import Supervisor
    from luce.supervisor.text import TextError

    config = _supervisor_config(read_engine_config({**values, "log_level": values["log_level"] or "warn"}, lanes=1))
    settings = ServeSettings(port=0, api_keys=(secrets.token_urlsafe(24),))
    try:
        async with AsyncExitStack() as stack:
            supervisor = Supervisor(config, on_log=say)
            async with loading_shown(supervisor, config.model.name):
                await stack.enter_async_context(supervisor)
            app = await create_app(supervisor, settings)
            _, url = await stack.enter_async_context(listening(app, settings))
            session = await stack.enter_async_context(aiohttp.ClientSession())
            yield ChatClient(session, url, settings.api_keys[0])
    except StartError as error:
        code = EXIT_BAD_ARGS if error.exit_code == EXIT_BAD_ARGS else EXIT_START_FAILED
        raise Failure(str(error), code) from error
    except (NotInstalledError, TextError) as error:
        raise Failure(str(error), EXIT_START_FAILED) from error


def _supervisor_config(config: DaemonConfig) -> SupervisorConfig:
    try:
        return SupervisorConfig(**{entry.name: getattr(config, entry.name) for entry in fields(DaemonConfig)})
    except ConfigError as error:
        raise Failure(str(error), EXIT_BAD_ARGS) from None
