"""How far a long command has come: a bar in a terminal, lines elsewhere. On stderr, since stdout has the results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from luce.supervisor.cli.entry import say


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
