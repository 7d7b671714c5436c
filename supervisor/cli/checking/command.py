"""`luce check`: does an engine keep the daemon's promises with this model on this machine? The command line: reads,
starts, shows. What is checked stands in luce.supervisor.checking."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from luce.supervisor.cli.bench.command import Depths
from luce.supervisor.cli.checking.report import print_report, to_json
from luce.supervisor.cli.checking.run import CheckRun
from luce.supervisor.cli.entry import (
    EXIT_OK,
    EXIT_REFUSED,
    EXIT_UNFINISHED,
    Failure,
    run_async,
    say,
)
from luce.supervisor.cli.numbers import Real
from luce.supervisor.cli.options import engine_options, read_binary, read_engine_config
from luce.supervisor.cli.output import print_tables, write_output
from luce.supervisor.cli.progress import progress
from luce.supervisor.cli.whole_file import write_file

if TYPE_CHECKING:
    from luce.supervisor.checking.checks import Check
    from luce.supervisor.checking.finding import Finding
    from luce.supervisor.checking.subject import Volume

_STDOUT = "-"

_EPILOG = """\b
What is checked (names for --only and --skip):
  reuse         prompts whose prefix, or all of them, is cached
  restore       restored snapshots
  park          texts after park and unpark
  disk          texts after a restart, from files of --disk-cache
  suspend       two answers in a pool too small for both
  paging        --kv-offload: texts that leave a bounded pool and come back
  lanes         several answers at once
  ngrams        drafts copied from earlier text, alone and in lanes
  drafter       drafts of --draft or --mtp, alone and in lanes
  sampling      temperature 0.7, top-k 40, top-p 0.95 with drafts and without
  conversation  a growing conversation: no empty answer, only finite logprobs
  kv-type       KL divergence of the KV type in use against f16
All but the last three compare tokens at temperature 0 with those of an engine without cache, lanes and drafts. They
may differ only where the two most likely tokens are nearly equal (--noise). A check also fails if its subject did not
occur, for example no reuse. docs/check.md explains each one.

\b
Examples:
  luce check --quick                               the packaged model, within a minute
  luce check --model m.gguf --draft d.gguf         everything, at 1,024, 4,096 and 32,768 tokens
  luce check --model m.gguf --only kv-type --cache-type-k q8_0 --cache-type-v q4_0
  luce check --model m.gguf --skip paging --lengths 1K,64K --json check.json
  luce check --model m.gguf --minutes 10           as much as fits ten minutes

\b
Exit codes: 0 all passed, 1 a check failed or nothing could be checked, 2 the start failed, 3 --minutes ended it early
and nothing failed, 64 bad arguments, 130 Ctrl-C.
"""


class Names(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """Names of checks with commas between them."""

    name = "checks"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        from luce.supervisor.checking.checks import CHECKS

        known = [check.name for check in CHECKS]
        names = tuple(value.split(",")) if isinstance(value, str) else tuple(value)
        for name in names:
            if name not in known:
                self.fail(f"{name!r} is no check: they are {', '.join(known)}", param, ctx)
        return names


@click.command("check", epilog=_EPILOG)
@click.option("--quick", is_flag=True, help="Use fewer and shorter texts (256 and 1,024 tokens).")
@click.option(
    "--lengths",
    type=Depths(),
    metavar="N,…",
    help="Lengths of the texts in tokens, 32K for 32768. Those beyond --ctx, or beyond the model's trained length,"
    " are left out. Default: 1K,4K,32K.",
)
@click.option("--only", type=Names(), metavar="NAME,…", help="Run only these checks.")
@click.option("--skip", type=Names(), metavar="NAME,…", default=(), help="Run all checks except these.")
@click.option(
    "--noise",
    type=Real(min=0),
    metavar="X",
    help="Maximum distance in logits at which rounding may swap the two most likely tokens. Default: measured first,"
    " with this model on this machine.",
)
@click.option(
    "--max-kl",
    type=Real(min=0),
    metavar="X",
    help="Maximum mean KL divergence of the KV type from f16, in nats per token. Default: by the type.",
)
@click.option(
    "--max-changed",
    type=Real(min=0, max=1),
    metavar="SHARE",
    help="Maximum share of positions at which the KV type changes a clear most likely token of f16. Default: 0.05.",
)
@click.option(
    "--minutes",
    type=Real(min=0),
    metavar="N",
    help="Stop after this many minutes and show the results so far. Default: no limit; an estimate follows a first"
    " short text.",
)
@click.option(
    "--json", "json_path", metavar="FILE", help="Write all results as JSON to this file; - for standard output."
)
@engine_options
def command(
    quick: bool,
    lengths: tuple[int, ...] | None,
    only: tuple[str, ...] | None,
    skip: tuple[str, ...],
    noise: float | None,
    max_kl: float | None,
    max_changed: float | None,
    minutes: float | None,
    json_path: str | None,
    **values: Any,
) -> int:
    """Check that caching, lanes and drafts change no answer of this model with these options, and that the KV type is
    accurate enough. The exit code is for CI.

    Each check starts its own engines, so the model is loaded about fifteen times.
    """
    checks = _chosen(only, skip)
    if values["log_level"] is None:
        values["log_level"] = "error"
    config = read_engine_config(values)
    volume = _volume(quick, lengths, noise, max_kl, max_changed)
    run = CheckRun(read_binary(), config, volume, checks)
    code = EXIT_OK
    with progress("starting", len(checks)) as advance:
        try:
            code = run_async(lambda: run.check_within(minutes, advance))
        except KeyboardInterrupt:
            code = 128 + signal.SIGINT
    if code != EXIT_OK:
        run.ended = "told to stop"
    if run.ended and not run.found:
        say(f"luce check: {run.ended} before anything was checked")
        return code or EXIT_UNFINISHED
    found, ready = run.all_found(), run.ready
    report = to_json(ready, config, replace(volume, noise=run.noise), found, run.ended)
    if json_path is not None and json_path != _STDOUT:
        write_file(Path(json_path), report, "--json")
    if json_path == _STDOUT:
        write_output(report)
    else:
        print_tables(lambda console: print_report(console, ready, found, run.ended))
    return code or _exit_code(found, run.ended)


def _chosen(only: tuple[str, ...] | None, skip: tuple[str, ...]) -> list[Check]:
    from luce.supervisor.checking.checks import CHECKS

    chosen = [check for check in CHECKS if (only is None or check.name in only) and check.name not in skip]
    if not chosen:
        raise click.UsageError("--only and --skip leave no check")
    return chosen


def _volume(
    quick: bool,
    lengths: tuple[int, ...] | None,
    noise: float | None,
    max_kl: float | None,
    max_changed: float | None,
) -> Volume:
    from luce.supervisor.checking.subject import QUICK, Volume

    volume = replace(QUICK if quick else Volume(), most_kl=max_kl)
    if lengths is not None:
        volume = replace(volume, lengths=tuple(sorted(lengths)))
    if max_changed is not None:
        volume = replace(volume, most_changed=max_changed)
    return volume if noise is None else replace(volume, noise=noise)


def _exit_code(found: list[Finding], ended: str) -> int:
    from luce.supervisor.checking.finding import Verdict

    verdicts = {finding.verdict for finding in found}
    if Verdict.FAILED in verdicts:
        return EXIT_REFUSED
    if ended:
        return EXIT_UNFINISHED
    if Verdict.PASSED not in verdicts:
        raise Failure("nothing could be checked: see what was left out, and why", EXIT_REFUSED)
    return EXIT_OK
