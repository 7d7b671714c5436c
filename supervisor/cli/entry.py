"""How a command line of ours begins and ends: standard streams, exit codes, signals, a reader that closed our output.

Knows click and the exit codes of the protocol; nothing of what the commands do.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NoReturn

import click

EXIT_OK = 0
EXIT_REFUSED = 1  # the engine refused the request, a check found something broken, or input or output failed
EXIT_START_FAILED = 2
EXIT_UNFINISHED = 3  # told to end by then, before all was done; nothing of what was done is wrong
EXIT_BAD_ARGS = 64
EXIT_ENGINE = 70


class Failure(click.ClickException):
    """An error that ends the command: one text for people, one exit code for programs."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance too


class OutputClosedError(Exception):
    """Nobody reads our standard output any more."""


def run_command(command: click.Command, name: str, on_failure: Callable[[str], None] | None = None) -> NoReturn:
    """Run `command` with this process's arguments and leave with its exit code. `on_failure` gets the text of an error
    before it is shown."""
    code: object = EXIT_OK
    failure: click.ClickException | None = None
    try:
        _fill_standard_fds()
        code = _run(command, name)
    except click.UsageError as error:
        failure, code = error, EXIT_BAD_ARGS
    except click.ClickException as error:
        failure, code = error, error.exit_code
    except OSError as error:
        failure, code = Failure(_in_words(error), EXIT_REFUSED), EXIT_REFUSED
    except (click.Abort, KeyboardInterrupt):
        code = 128 + signal.SIGINT
    except OutputClosedError:
        _end_like_a_closed_pipe()
    if failure is not None:
        with suppress(OSError):
            if on_failure is not None:
                on_failure(failure.format_message())
        with suppress(OSError):
            failure.show()
    _leave(code if isinstance(code, int) else EXIT_OK)


def say(text: str, *, nl: bool = True) -> None:
    """A word to people, on stderr. If nobody can hear it, the work goes on."""
    with suppress(OSError):
        click.echo(text, nl=nl, err=True)


def _run(command: click.Command, name: str) -> object:
    if sys.stdout is None:
        raise Failure("standard output is closed: leave it open, or send it to /dev/null", EXIT_BAD_ARGS)
    stdout = sys.stdout
    try:
        code: object = command.main(prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        raise OutputClosedError from None
    except SystemExit:
        if sys.stdout is not stdout:  # click has put its own over a pipe that was closed, and would exit with 1
            raise OutputClosedError from None
        raise
    return code


def _fill_standard_fds() -> None:
    """What a closed one would get otherwise is the next file or pipe that is opened. sys.stdin and sys.stdout stay None
    and so tell that they were closed."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free: this one
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def _in_words(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"input or output failed: {reason}" if error.filename is None else f"{error.filename}: {reason}"


def _leave(code: int) -> NoReturn:
    # What could not be written stays in the buffers: the interpreter would try again and complain about it.
    for stream, fd in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            _discard(fd)
    sys.exit(code)


def _discard(fd: int) -> None:
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, fd)
    os.close(devnull)


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
    _discard(1)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGPIPE)
    sys.exit(128 + signal.SIGPIPE)  # only where SIGPIPE is blocked
