"""`luce ps`: the servers and engines of this machine, found among its processes and asked how they stand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from luce.supervisor.cli.entry import EXIT_OK
from luce.supervisor.cli.numbers import format_bytes
from luce.supervisor.cli.output import print_tables, safe, write_output
from luce.supervisor.cli.server_client import ServerClient, ServerError
from luce.supervisor.cli.servers import KEY_VARIABLE, named_server
from luce.supervisor.cli.watching.board import NOT_KNOWN
from luce.supervisor.cli.watching.looking import status_of
from luce.supervisor.cli.watching.processes import Process, Runner, runners_running

if TYPE_CHECKING:
    from rich.console import Console

_ANSWER_S = 3.0  # a busy engine takes a second


@dataclass(frozen=True, slots=True)
class Asked:
    """What a server says; None and why, where it says nothing."""

    url: str | None
    status: dict[str, Any] | None
    why_not: str


@click.command("ps")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def command(*, as_json: bool) -> int:
    """List the servers and engines on this machine: model, address, uptime, memory, lanes.

    Engines are listed below their server. Memory is the process's host memory, including the model's file, which
    engines of the same model share. Servers with keys report their load if LUCE_API_KEY has a key. Other users'
    addresses are hidden.
    """
    runners = runners_running()
    with ThreadPoolExecutor(max_workers=max(len(runners), 1)) as pool:
        asked = list(pool.map(_ask, runners))
    if as_json:
        listed = [_fields(runner, said) for runner, said in zip(runners, asked, strict=True)]
        write_output(json.dumps(listed, indent=2).encode() + b"\n")
    elif not runners:
        write_output(b"Nothing of luce-daemon runs on this machine: `luce serve` starts a server.\n")
    else:
        print_tables(lambda console: _print(console, runners, asked))
    return EXIT_OK


def _ask(runner: Runner) -> Asked:
    why_not = ""
    for url in runner.urls:
        # A key is for nobody else's programs.
        server = named_server("", url, KEY_VARIABLE) if runner.is_ours else ServerClient(url, None)
        try:
            return Asked(url, status_of(server, _ANSWER_S), "")
        except ServerError as error:
            why_not = str(error)
    return Asked(next(iter(runner.urls), None), None, why_not)


def _fields(runner: Runner, asked: Asked) -> dict[str, Any]:
    return {
        "program": runner.title,
        **_process_fields(runner),
        "urls": list(runner.urls),
        "model": _model(runner, asked),
        "state": _state(runner, asked),
        "lanes": None if asked.status is None else _n_lanes(asked.status),
        "lanes_busy": None if asked.status is None else _n_busy(asked.status),
        "waiting": None if asked.status is None else asked.status["waiting"],
        "said": asked.why_not or None,
        "engines": [{**_process_fields(engine), "model": _model_of(engine)} for engine in runner.engines],
    }


def _process_fields(process: Process) -> dict[str, Any]:
    return {"pid": process.pid, "uptime_s": round(process.uptime_s, 1), "memory_bytes": process.memory_bytes}


def _print(console: Console, runners: Sequence[Runner], asked: Sequence[Asked]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("program", "PID", "model", "address", "state", "lanes", "uptime", "memory"):
        is_number = name in {"PID", "lanes", "uptime", "memory"}
        table.add_column(name, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for runner, said in zip(runners, asked, strict=True):
        for cells in _rows(runner, said):
            table.add_row(*cells)
    console.print(table)
    for runner, said in zip(runners, asked, strict=True):
        if said.why_not and not runner.is_private:
            console.print(safe(f"{runner.pid}: {said.why_not}"), style="dim", markup=False, highlight=False)


def _rows(runner: Runner, asked: Asked) -> Iterator[tuple[str, ...]]:
    lanes = NOT_KNOWN
    if asked.status is not None:
        lanes = f"{_n_busy(asked.status)}/{_n_lanes(asked.status)}"
    model, state = (word or NOT_KNOWN for word in (_model(runner, asked), _state(runner, asked)))
    address = "\n".join(runner.urls) or NOT_KNOWN
    yield (runner.title, str(runner.pid), model, address, state, lanes, *_size(runner))
    for engine in runner.engines:
        lanes = engine.option("--lanes") or ""
        yield (" └ luced", str(engine.pid), _model_of(engine) or NOT_KNOWN, "", "", lanes, *_size(engine))


def _size(process: Process) -> tuple[str, str]:
    return str(timedelta(seconds=int(process.uptime_s))), format_bytes(process.memory_bytes)


def _n_lanes(status: dict[str, Any]) -> int:
    return sum(engine["lanes"] for engine in status["engines"])


def _n_busy(status: dict[str, Any]) -> int:
    return sum(len(engine["running"]) for engine in status["engines"])


def _model(runner: Runner, asked: Asked) -> str | None:
    if asked.status is not None:
        return str(asked.status["model"])
    return next(map(_model_of, runner.engines), None)


def _state(runner: Runner, asked: Asked) -> str | None:
    if asked.status is not None:
        return ", ".join(sorted({engine["state"] for engine in asked.status["engines"]}))
    return "starting" if runner.is_server and runner.is_ours and not runner.urls else None


def _model_of(engine: Process) -> str | None:
    model = engine.option("--model")
    return None if model is None else Path(model).stem
