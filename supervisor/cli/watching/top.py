"""`luce top`: a server, looked at again and again, until q or Ctrl-C."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from luce.supervisor.cli.entry import EXIT_OK, EXIT_REFUSED, Failure
from luce.supervisor.cli.numbers import Seconds
from luce.supervisor.cli.output import print_tables, safe
from luce.supervisor.cli.server_client import ServerClient, ServerError
from luce.supervisor.cli.servers import DEFAULT_URL, KEY_VARIABLE, end_by_signals, named_server, undisturbed
from luce.supervisor.cli.watching.looking import memory_of, others_running, status_of
from luce.supervisor.cli.watching.speeds import Speeds, Status, speeds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from luce.supervisor.cli.watching.conversations import Conversation

_ANSWER_S = 5.0  # a busy engine takes a second
_STDIN_FD = 0
_N_RATES = 60
_MEMORY_EVERY_S = 3.0  # an engine looks through its whole tree for it


@click.command("top")
@click.option(
    "--url", metavar="URL", help=f"Server to monitor; `luce ps` lists those of this machine. Default: {DEFAULT_URL}."
)
@click.option(
    "--api-key", metavar="KEY", help=f"The server's key. Better in {KEY_VARIABLE}, which no list of processes shows."
)
@click.option(
    "--interval",
    "interval_s",
    type=Seconds(max_s=3600),
    default=1.0,
    metavar="SECONDS",
    help="Seconds between updates. Default: 1.",
)
@click.option(
    "--name",
    "model_name",
    metavar="NAME",
    help="Model whose conversations are shown, on a server with several. Default: the first one.",
)
@click.option("--once", is_flag=True, help="Print one picture and exit, as when stdout is not a terminal.")
def command(*, url: str | None, api_key: str | None, interval_s: float, model_name: str | None, once: bool) -> int:
    """Monitor a server: its lanes, its speed, its cached conversations, their tiers and the cost of reading them again.

    q leaves, any other key refreshes. Conversations need a key of scope admin. /metrics has the same figures for
    Prometheus; the page at the server's address shows them in a browser.
    """
    server = named_server("--url", url or DEFAULT_URL, KEY_VARIABLE, api_key)
    end_by_signals()
    try:
        watch = _Watch(server, model_name)
    except ServerError as error:
        hint = others_running() if error.status is None else ""
        raise Failure(f"{error}{hint}", EXIT_REFUSED) from None
    if once or not sys.stdout.isatty():
        time.sleep(interval_s)
        watch.look()
        print_tables(lambda console: console.print(watch))
    else:
        _show(watch, interval_s)
    return EXIT_OK


class _Watch:
    """The last look at a server, drawn."""

    def __init__(self, server: ServerClient, model: str | None) -> None:
        """Raises ServerError, where the first one fails. Later ones may: the server is started anew, say."""
        self._server = server
        self._model = model
        self._status = status_of(server, _ANSWER_S)
        self._speeds = Speeds()
        self._rates: deque[float] = deque(maxlen=_N_RATES)
        self._trouble: str | None = None
        self._remembered: list[Conversation] | str = ""
        self._memory_s = -_MEMORY_EVERY_S
        self._look_at_memory()

    def look(self) -> None:
        before: Status = self._status
        try:
            self._status = status_of(self._server, _ANSWER_S)
        except ServerError as error:
            self._trouble = safe(str(error))
            return
        self._trouble = None
        for engine, earlier in zip(self._status["engines"], before["engines"], strict=False):
            engine["tiers"] = engine["tiers"] or earlier["tiers"]  # one that is busy does not say
        self._speeds = speeds(self._status, before)
        self._rates.append(self._speeds.generated_per_s or 0.0)
        self._look_at_memory()

    def _look_at_memory(self) -> None:
        from luce.supervisor.cli.watching.conversations import conversations

        if time.monotonic() - self._memory_s < _MEMORY_EVERY_S:
            return
        try:
            self._remembered = conversations(memory_of(self._server, self._model, _ANSWER_S))
        except ServerError as error:
            self._remembered = f"conversations are not shown: {safe(str(error))}"
        self._memory_s = time.monotonic()

    def __rich__(self) -> RenderableType:
        from luce.supervisor.cli.watching.board import board

        return board(self._status, self._speeds, self._rates, self._server.url, self._remembered, self._trouble)


def _show(watch: _Watch, interval_s: float) -> None:
    from rich.live import Live

    live = Live(watch, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    with suppress(KeyboardInterrupt), _keys_come_at_once():
        try:
            with undisturbed():
                live.start(refresh=True)
            while not _is_left(interval_s):
                watch.look()
                with undisturbed():
                    live.refresh()
        finally:
            with undisturbed():
                live.stop()


@contextmanager
def _keys_come_at_once() -> Iterator[None]:
    """Without Enter, and unseen."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(_STDIN_FD)
    tty.setcbreak(_STDIN_FD)
    try:
        yield
    finally:
        termios.tcsetattr(_STDIN_FD, termios.TCSADRAIN, before)


def _is_left(interval_s: float) -> bool:
    """Waits for the next look; any key but q brings it near."""
    if sys.stdin is None or not sys.stdin.isatty():
        time.sleep(interval_s)
        return False
    if not select.select([_STDIN_FD], [], [], interval_s)[0]:
        return False
    return os.read(_STDIN_FD, 1024) in {b"", b"q", b"Q"}
