"""How far an engine is with loading its model, for people: a bar in a terminal, a line now and then elsewhere.

Looks at a supervisor's status while it is being entered; knows nothing of what is done with it afterwards.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from luce.supervisor.cli.entry import say
from luce.supervisor.engine.watchdog import EngineState
from luce.supervisor.supervisor import Supervisor

_LOOK_S = 0.1
_STEP_PERCENT = 10  # between two lines


@asynccontextmanager
async def loading_shown(supervisor: Supervisor, model: str) -> AsyncIterator[None]:
    """Around the entering of `supervisor`."""
    show = _show_bar if sys.stderr is not None and sys.stderr.isatty() else _show_lines
    shower = asyncio.create_task(show(supervisor, model), name="how far loading is")
    try:
        yield
    finally:
        shower.cancel()
        await asyncio.wait([shower])


def load_percent(supervisor: Supervisor) -> int | None:
    """Of the engine that is furthest behind; None: none has said."""
    engines = [engine for engine in supervisor.status().engines if engine.state is EngineState.STARTING]
    return min((engine.load_percent for engine in engines if engine.load_percent is not None), default=None)


async def _show_lines(supervisor: Supervisor, model: str) -> None:
    say(f"loading {model}")
    await watch_loading(supervisor, lambda percent: say(f"loading {model}: {percent} %"))


async def watch_loading(supervisor: Supervisor, tell: Callable[[int], None]) -> None:
    """Calls `tell` at each further tenth, until cancelled."""
    told = 0
    while True:
        percent = load_percent(supervisor)
        if percent is not None and percent >= told + _STEP_PERCENT:
            told = percent - percent % _STEP_PERCENT
            tell(told)
        await asyncio.sleep(_LOOK_S)


async def _show_bar(supervisor: Supervisor, model: str) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("loading {task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(model, total=None)
        while True:
            percent = load_percent(supervisor)
            if percent is not None:
                progress.update(task, total=100, completed=percent)
            await asyncio.sleep(_LOOK_S)
