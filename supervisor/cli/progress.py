"""How far a long command has come: a bar in a terminal, lines elsewhere. On stderr, since stdout has the results."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from luce.supervisor.cli.entry import say

_LINE_S = 10.0  # between lines of an amount


@contextmanager
def progress(begins: str, n_steps: int) -> Iterator[Callable[[str], None]]:
    """Call what it gives after each step, with what was done. `begins`: what stands there before the first one."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield say
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(begins, total=n_steps)
        yield lambda text: bar.update(task, advance=1, description=escape(text))


@contextmanager
def amount(what: str, n_total: int | None) -> Iterator[Callable[[int], None]]:
    """Call what it gives with how much is done by now. A total of None: nobody says so, and only time goes by."""
    if sys.stderr is None or not sys.stderr.isatty():
        said_s = time.monotonic()

        def note(n_done: int) -> None:
            nonlocal said_s
            if time.monotonic() - said_s >= _LINE_S:
                said_s = time.monotonic()
                say(f"{what}: {n_done:,} of {n_total or 0:,} tokens")

        yield note
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=n_total)
        yield lambda n_done: bar.update(task, completed=min(n_done, n_total or 0))
