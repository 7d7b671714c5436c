"""How a command line of ours ends: exit codes, signals, and a reader that closed our output.

Knows click and the exit codes of the protocol; nothing of what the commands do.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import click

EXIT_OK = 0
EXIT_REFUSED = 1  # the engine refused the request, or a check found something broken
EXIT_START_FAILED = 2
EXIT_BAD_ARGS = 64
EXIT_ENGINE = 70


class Failure(click.ClickException):
    """An error that ends the command: one text for people, one exit code for programs."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance too


class OutputClosedError(Exception):
    """Nobody reads our standard output any more."""


def run_command(command: click.Command, name: str) -> NoReturn:
    """Run `command` with this process's arguments and leave with its exit code."""
    try:
        code = command.main(prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except click.UsageError as error:
        error.show()
        sys.exit(EXIT_BAD_ARGS)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(128 + signal.SIGINT)
    except (OutputClosedError, BrokenPipeError):
        _end_like_a_closed_pipe()
    sys.exit(code if isinstance(code, int) else EXIT_OK)


def run_async(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """asyncio.run, where SIGTERM and SIGHUP unwind the program as Ctrl-C does: what was started is stopped."""
    received: list[int] = []

    async def guarded() -> int:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()

        def stop(number: int) -> None:
            received.append(number)
            task.cancel()

        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop, number)
        return await main()

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        if not received:
            raise
        return 128 + received[0]


def _end_like_a_closed_pipe() -> NoReturn:
    # What a shell expects of the left side of a pipeline: to die of SIGPIPE, silently.
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGPIPE)
    sys.exit(128 + signal.SIGPIPE)  # only where SIGPIPE is blocked
