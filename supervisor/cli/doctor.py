"""`luce doctor`: is this installation whole, and does it generate? Asks the parts themselves and prints their words."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from luce.supervisor.cli.entry import EXIT_OK, EXIT_REFUSED, Failure, run_async
from luce.supervisor.cli.model_files import read_model
from luce.supervisor.cli.options import model_option, read_binary
from luce.supervisor.cli.output import print_tables

if TYPE_CHECKING:
    from rich.console import Console

    from luce.protocol import GenerateOk

_BACKEND_VARIABLE = "GGML_BACKEND_PATH"
_PROMPT_IDS = (1, 2, 3, 4)  # every vocabulary has them
_N_TOKENS = 8
_PROBE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    what: str
    good: bool
    text: str


@click.command("doctor")
@model_option
@click.option("--cache-store", metavar="URL", help="Write, read and delete a test object in this object store.")
@click.option("--rpc", metavar="HOST:PORT,…", help="Look for these RPC workers' devices too (luce rpc-worker).")
def command(model: Path | None, rpc: str | None, cache_store: str | None) -> int:
    """Check this installation: the native daemon and its build, the CPU's features, GPUs and loadable backends, the
    text library, the packaged models, and one generation (with --model, by that model).

    If something is broken, it says what to do and exits with 1.
    """
    findings = [*_check_daemon(rpc), _check_text_library(), _check_generation(model)]
    if cache_store is not None:
        findings.append(_check_store(cache_store))
    print_tables(lambda console: _print(console, findings))
    return EXIT_OK if all(finding.good for finding in findings) else EXIT_REFUSED


def _print(console: Console, findings: list[Finding]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")  # paths are here to be read to their end
    for finding in findings:
        table.add_row("[green]ok[/]" if finding.good else "[red]BROKEN[/]", escape(finding.what), escape(finding.text))
    console.print(table)


def _check_daemon(rpc: str | None) -> list[Finding]:
    from luce.supervisor.engine.locate import NotInstalledError, find_luced

    try:
        binary = find_luced()
        said = subprocess.run(
            [str(binary), "--version", "--log-level", "debug", *([] if rpc is None else ["--rpc", rpc])],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except NotInstalledError as error:
        return [Finding("daemon", False, str(error))]
    except (OSError, subprocess.TimeoutExpired) as error:
        return [Finding("daemon", False, f"it does not run: {error}")]
    if said.returncode != 0:
        return [Finding("daemon", False, f"{binary} --version exits {said.returncode}: {said.stderr[-500:].strip()}")]
    findings = [Finding("daemon", True, str(binary))]
    n_gpus = 0
    for line in said.stdout.splitlines():
        what, _, text = line.partition(" ")
        n_gpus += what == "device" and text.startswith(("kind=gpu", "kind=igpu"))
        findings.append(Finding(what, True, text))
    findings += _check_named_backend(said.stderr)
    if n_gpus == 0:
        findings.append(Finding("gpu", True, "none: it computes on the CPU" + _gpu_hint(binary)))
    return findings


def _check_named_backend(log: str) -> list[Finding]:
    """By ggml's own words: it says what it has loaded from where, and goes on without what it could not load."""
    path = os.environ.get(_BACKEND_VARIABLE)
    if path is None:
        return []
    about = [line.partition("load_backend: ")[2] for line in log.splitlines() if "load_backend: " in line]
    if any(line.startswith("loaded ") and line.endswith(f" from {path}") for line in about):
        return [Finding("backend", True, path)]
    why = "; ".join(line for line in about if not line.startswith("loaded ")) or "the daemon does not say why"
    return [Finding("backend", False, f"{_BACKEND_VARIABLE}={path} was not loaded: {why}; correct or unset it")]


def _gpu_hint(binary: Path) -> str:
    backends = sorted(path.name for path in binary.parent.glob("libggml-*.so"))
    if backends:
        return f" (loadable backends beside the daemon: {', '.join(backends)}; GGML_BACKEND_PATH names a further one)"
    return " (this build loads no backends; docs/quickstart.md, “Building with CUDA”, has both ways)"


def _check_text_library() -> Finding:
    from luce.supervisor.cli.model_files import text_model

    sample = b"def f(x):\n    return x"
    try:
        with text_model(read_model(None)) as text:
            ids = text.tokenize(sample)
            whole = b"".join(map(text.piece, ids)) == sample
    except Failure as error:
        return Finding("text", False, error.message)
    return Finding("text", whole, f"{len(ids)} tokens there and back" if whole else "text changes on its way to tokens")


def _check_store(url: str) -> Finding:
    from luce.supervisor.cache_store.object_store import ObjectStore, StoreError
    from luce.supervisor.config import ConfigError

    path, data = f"doctor-{secrets.token_hex(8)}", secrets.token_bytes(1 << 20)

    async def try_it(store: ObjectStore) -> str:
        began_s = time.monotonic()
        await store.put(path, data)
        written_s = time.monotonic()
        read = await store.get(path)
        read_s = time.monotonic()
        await store.delete([path])
        if bytes(read or b"") != data:
            raise StoreError("it gives other bytes than it was given")
        return f"{url}: 1 MiB written in {written_s - began_s:.3f} s, read in {read_s - written_s:.3f} s, deleted"

    try:
        return Finding("cache store", True, asyncio.run(try_it(ObjectStore.open(url))))
    except (ConfigError, StoreError) as error:
        return Finding("cache store", False, f"{url}: {error}")


def _check_generation(model: Path | None) -> Finding:
    try:
        checked = read_model(model)
        binary = read_binary()
        finals: list[GenerateOk] = []
        run_async(lambda: _generate(binary, checked, finals))
    except Failure as error:
        return Finding("generation", False, error.message)
    (final,) = finals
    figures = f"{final.n_generated} tokens by {checked.name}, {final.decode_tokens_per_s:,.0f} a second"
    return Finding("generation", final.n_generated == _N_TOKENS, figures)


async def _generate(binary: Path, model: Path, finals: list[GenerateOk]) -> int:
    from luce.protocol import Generate, GenerateOk
    from luce.supervisor.cli.engine_session import engine_session, events_within
    from luce.supervisor.config import DaemonConfig

    command = Generate(prompt=_PROMPT_IDS, n_generate=_N_TOKENS, ignore_eos=True)
    async with (
        engine_session(binary, DaemonConfig(model=model, ctx=256, lanes=1, draft_max=0, log_level="error")) as client,
        await client.generate(command) as generation,
    ):
        finals.extend([event async for event in events_within(generation) if isinstance(event, GenerateOk)])
    return EXIT_OK
