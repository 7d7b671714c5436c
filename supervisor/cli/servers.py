"""The server that a command talks to: one that runs, by its address, or one of its own.

One of its own is `luce serve` as a child process on a free port, with a key that nobody else knows. Its messages go to
our stderr. It is gone when the block is left, and also when this process is killed.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from luce.supervisor.cli.entry import EXIT_BAD_ARGS, EXIT_ENGINE, Failure, say
from luce.supervisor.cli.options import engine_options
from luce.supervisor.cli.output import safe
from luce.supervisor.cli.server_client import ServerClient, ServerError, server_url

if TYPE_CHECKING:
    from types import FrameType

DEFAULT_URL = "http://127.0.0.1:8080"
KEY_VARIABLE = "LUCE_API_KEY"
UNNAMED_MODEL = "default"  # a server that lists no model answers under any name

_LOOK_S = 10.0
_NO_LIST = frozenset({404, 405, 501})  # of a server that answers chats but lists no models
_END_S = 30.0
# What is no option of `luce serve`: where the parts of the package are, and how tests look at it.
_KEPT = frozenset({"LUCE_CHECK_ANSWERS", "LUCE_DAEMON_BINARY", "LUCE_TEXT_LIBRARY"})
# The kernel ends it with this process. Set in the child, because nothing may run between fork and exec here.
_START = (
    "import ctypes, os, signal, sys; parent = int(sys.argv.pop(1)); ctypes.CDLL(None).prctl(1, signal.SIGTERM);"
    " parent == os.getppid() or sys.exit(0); from luce.supervisor.cli.app import main; main()"
)


def named_server(option: str, url: str, key_variable: str, key: str | None = None) -> ServerClient:
    """The server at `url`, with `key` or one of those in the environment's variable: it may hold all keys of a server.
    Raises Failure."""
    keys = os.environ.get(key_variable, "") if key is None else key
    first = next((one.strip() for one in keys.split(",") if one.strip()), None)
    try:
        return ServerClient(server_url(url), first)
    except ValueError as error:
        raise Failure(f"{option} {error}", EXIT_BAD_ARGS) from None


def models_at(server: ServerClient) -> list[str]:
    """The names that a server lists; none: it does not say. Raises ServerError where it would answer nothing."""
    try:
        models = server.look("/v1/models", _LOOK_S).get("data")
    except ServerError as error:
        if error.status not in _NO_LIST:
            raise
        models = None
    listed = models if isinstance(models, list) else []
    return [model["id"] for model in listed if isinstance(model, dict) and isinstance(model.get("id"), str)]


def asked_model(server: ServerClient, name: str | None, option: str) -> str:
    """What requests call the model: `name`, or else the server's first one; `option` is told where there are others.
    Raises ServerError."""
    if name is not None:
        return name
    names = models_at(server)
    if len(names) > 1:
        say(f"{server.url} is asked for {safe(names[0])}; {option} chooses among {safe(', '.join(names))}")
    return names[0] if names else UNNAMED_MODEL


def engine_arguments(context: click.Context) -> list[str]:
    """The engine's options that stand on this command's line, as they are given to `luce serve`."""
    names = _engine_option_names()
    arguments: list[str] = []
    for option in context.command.params:
        if option.name not in names or context.get_parameter_source(option.name) is not ParameterSource.COMMANDLINE:
            continue
        value = context.params[option.name]
        arguments.append(option.opts[0])
        if not (isinstance(option, click.Option) and option.is_flag):
            arguments.append(",".join(value) if isinstance(value, tuple) else str(value))
    return arguments


def _engine_option_names() -> set[str | None]:
    @click.command()
    @engine_options
    def all_of_them() -> None:
        pass

    return {option.name for option in all_of_them.params}


def end_by_signals() -> None:
    """SIGTERM and SIGHUP unwind the program, and so end what it has started."""
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGHUP, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    sys.exit(128 + number)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Signals that end a program or an answer come when the block is left: what draws on a terminal is not to be left
    in the middle."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def own_server(arguments: Sequence[str]) -> Iterator[ServerClient]:
    """A server that is ready. Where it does not start it has said why, and click.exceptions.Exit has its status."""
    port, key = _free_port(), secrets.token_urlsafe(24)
    command = [
        sys.executable, "-c", _START, str(os.getpid()), "serve", "--host", "127.0.0.1", "--port", str(port),
        "--shutdown-grace", "1", *arguments,
    ]  # fmt: skip
    # A process group of its own: Ctrl-C in the terminal is for us.
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=_environment(key), process_group=0
    )
    try:
        assert child.stdout is not None
        if child.stdout.read(1) == b"":  # it writes there once it is ready, and not before
            code = child.wait()
            raise click.exceptions.Exit(code if code > 0 else EXIT_ENGINE)
        yield ServerClient(f"http://127.0.0.1:{port}", key)
    finally:
        _end(child)


def _environment(key: str) -> Mapping[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LUCE_") or name in _KEPT}
    return {**kept, KEY_VARIABLE: key}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(_END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdout is not None:
        child.stdout.close()
