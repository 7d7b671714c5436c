"""`luce eval`: does a model answer rightly, alone or against another? The command line; starts, asks and shows."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from luce.supervisor.cli.bench.command import Depths
from luce.supervisor.cli.entry import EXIT_OK, EXIT_REFUSED, EXIT_UNFINISHED, Failure, say
from luce.supervisor.cli.evaluation.asking import ask_within
from luce.supervisor.cli.evaluation.report import print_results, to_json
from luce.supervisor.cli.evaluation.sides import ServerSide
from luce.supervisor.cli.evaluation.task_choice import choose_tasks
from luce.supervisor.cli.numbers import Real
from luce.supervisor.cli.options import engine_options
from luce.supervisor.cli.output import print_tables, write_output
from luce.supervisor.cli.server_client import ServerClient, ServerError
from luce.supervisor.cli.servers import (
    UNNAMED_MODEL,
    asked_model,
    end_by_signals,
    engine_arguments,
    named_server,
    own_server,
)
from luce.supervisor.cli.time_limit import TimeIsUp, time_limit
from luce.supervisor.evaluating.question import Task
from luce.supervisor.evaluating.results import Results
from luce.supervisor.evaluating.suites import PACKAGED_AT_LEAST, PACKAGED_LENGTH, SUITES, Suite

_EPILOG = """\b
What is asked:
  needles   needle, needle-many, needle-hop: codes that a long text names
  ruler     multi-key, multi-value, multi-query, variables, common-words, frequent-words
  tools     tool calls: well formed (tools-formed), the right tool (tools-name), the right arguments
            (tools-arguments)
  replay    an agent's session, each answer compared with the recorded one: replay-formed, replay-tool,
            replay-arguments, replay-text
  humaneval, gsm8k, math    published problems, from files that you name

\b
Examples:
  luce eval                                        the packaged model: does this installation work?
  luce eval --model m.gguf --suite standard --plot m.png
  luce eval --model m.gguf --vs "--cache-type-k q8_0 --cache-type-v q4_0"     the cost of a setting
  luce eval --url http://127.0.0.1:8080 --vs http://127.0.0.1:8081 --tasks tools,replay
  luce eval --model m.gguf --tasks gsm8k --gsm8k test.jsonl --at-least gsm8k=0.6
  luce eval --model m.gguf --suite standard --minutes 30        a share of each task, by then

\b
Exit codes: 0 done, 1 a share is below --at-least or a server refused, 2 the start failed, 3 --minutes ended it early
and no share is below, 64 bad arguments, 130 Ctrl-C.
"""
_CTX_BESIDE = 1024  # tokens of template, question and answer around a long text, and more than any tool's prompt


class AtLeast(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """NAME=SHARE, the share from 0 to 1 or in percent."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        if not isinstance(value, str):
            name, wanted = value
            return str(name), float(wanted)
        name, _, number = value.partition("=")
        try:
            share = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not (name and 0 <= share <= 1):
            self.fail(f"{value!r} is no NAME=SHARE, needle=0.9 or needle=90% say", param, ctx)
        return name, share


class Names(click.ParamType):  # type: ignore[type-arg]  # as AtLeast
    """Names with commas between them."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        del param, ctx
        words = value.split(",") if isinstance(value, str) else value
        return tuple(dict.fromkeys(word.strip() for word in words))


_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_COUNT = click.IntRange(1, 1 << 20)


@click.command("eval", epilog=_EPILOG)
@click.option("--url", metavar="URL", help="Ask this server with OpenAI's API instead of starting an engine.")
@click.option(
    "--vs",
    metavar="URL|OPTIONS",
    help="Compare with this server, or with a second engine that has these additional options. Both get the same"
    " questions in turns.",
)
@click.option(
    "--suite", type=click.Choice(list(SUITES)), default="quick", show_default=True, help="Volume of questions."
)
@click.option("--tasks", type=Names(), metavar="NAME,…", help="Only these tasks, or families of them. Default: all.")
@click.option("--lengths", type=Depths(), metavar="N,…", help="Lengths of the long prompts, in tokens; 8K for 8192.")
@click.option("--samples", type=_COUNT, metavar="N", help="Number of questions per task and length.")
@click.option("--transcripts", type=click.Path(path_type=Path, exists=True), multiple=True, metavar="PATH",
              help="Replay these sessions of Claude Code or Codex: files or folders. Default: invented.")  # fmt: skip
@click.option("--humaneval", type=_FILE, metavar="FILE", help="HumanEval's published file, JSONL or JSONL.gz.")
@click.option("--gsm8k", type=_FILE, metavar="FILE", help="GSM8K's published JSONL file.")
@click.option("--math", type=_FILE, metavar="FILE", help="JSONL file of MATH or MATH-500, with problem and solution.")
@click.option("--run-code", is_flag=True, help="Let --humaneval run the code that the model writes. Its process has"
              " limits and, if the kernel allows it, no network. It can read your files.")  # fmt: skip
@click.option("--at-least", type=AtLeast(), multiple=True, metavar="NAME=SHARE",
              help="Exit with 1 if this share is lower; with --vs also NAME-same, the share of identical answers. The"
              " packaged model has defaults. May be repeated.")  # fmt: skip
@click.option("--parallel", type=click.IntRange(1, 256), default=1, show_default=True, metavar="N",
              help="Number of simultaneous questions.")  # fmt: skip
@click.option("--thinking", type=click.IntRange(0, 1 << 20), default=0, show_default=True, metavar="N",
              help="Additional tokens of an answer for reasoning.")  # fmt: skip
@click.option("--minutes", type=Real(min=0), metavar="N", help="Stop after this many minutes and show the results so"
              " far; tasks take turns. Default: no limit; an estimate is shown at the start.")  # fmt: skip
@click.option("--name", "model_name", metavar="NAME", help="Name of the model at --url. Default: the first one.")
@click.option("--vs-name", metavar="NAME", help="Name of the model at --vs. Default: the first one.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print shares, intervals and every answer as JSON instead of tables."
)
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw the results into a PNG, SVG or PDF file."
)
@engine_options
@click.pass_context
def command(context: click.Context, /, **values: Any) -> int:
    """Measure a model's accuracy with questions on long texts, tool calls, agents' sessions and published problems.

    Without --url it starts an engine with the options below. --seed selects the questions. Keys come from LUCE_API_KEY,
    the key of --vs from LUCE_VS_API_KEY. Shares are shown with their 95 % confidence interval.
    """
    suite = _suite(values)
    tasks = choose_tasks(values, suite.n_problems)
    at_least = _at_least(values, tasks, suite)
    pyplot = None
    if values["plot"] is not None:
        from luce.supervisor.cli.evaluation.plot import save_plot
        from luce.supervisor.cli.pictures import open_pyplot

        pyplot = open_pyplot()
    end_by_signals()
    settings = {"suite": values["suite"], "seed": _seed(values), "temperature": 0, "thinking": values["thinking"]}
    results = Results({}, tasks, settings, at_least)
    minutes = values["minutes"]
    code = EXIT_OK
    try:
        with (
            time_limit(None if minutes is None else 60 * minutes),
            _sides(context, values, suite) as (sides, results.sides),
        ):
            ask_within(results, sides, suite, values["parallel"], minutes)
    except ServerError as error:
        raise Failure(str(error), EXIT_REFUSED) from None
    except TimeIsUp:
        results.ended, code = f"the time is up (--minutes {minutes:g})", EXIT_UNFINISHED
    except KeyboardInterrupt:
        results.ended, code = "told to stop", 128 + signal.SIGINT
    if results.ended and not results.asked:
        say(f"luce eval: {results.ended} before anything was answered")
        return code
    if not any(asked.outcomes for asked in results.asked):
        raise Failure("; ".join(["nothing could be asked", *results.refusals()]), EXIT_REFUSED)
    if values["as_json"]:
        write_output((json.dumps(to_json(results), indent=2) + "\n").encode())
    else:
        print_tables(lambda console: print_results(console, results))
    if pyplot is not None:
        save_plot(pyplot, results, values["plot"])
    shortfalls = results.shortfalls()
    for shortfall in shortfalls:
        say(f"below --at-least: {shortfall}")
    return EXIT_REFUSED if shortfalls and code in {EXIT_OK, EXIT_UNFINISHED} else code


def _suite(values: Mapping[str, Any]) -> Suite:
    suite = SUITES[values["suite"]]
    if values["lengths"] is not None:
        suite = replace(suite, lengths=values["lengths"])
    if values["samples"] is not None:
        suite = replace(suite, n_samples=values["samples"], n_calls=values["samples"], n_problems=values["samples"])
    return suite


def _seed(values: Mapping[str, Any]) -> int:
    return 1 if values["seed"] is None else int(values["seed"])


def _at_least(values: Mapping[str, Any], tasks: Sequence[Task], suite: Suite) -> dict[str, float]:
    """What was given; the packaged model's own where that is asked what it can do. Raises UsageError."""
    metrics = {metric for task in tasks for metric in task.metrics}
    known = metrics | ({f"{task.name}-same" for task in tasks} if values["vs"] is not None else set())
    for name, _ in values["at_least"]:
        if name not in known:
            names = ", ".join(sorted(known))
            raise click.UsageError(f"--at-least {name}: nothing of this name is asked; there are {names}")
    is_packaged = values["url"] is None and values["model"] is None and not values["transcripts"]
    is_known = is_packaged and max(suite.lengths) <= PACKAGED_LENGTH
    own = {name: share for name, share in PACKAGED_AT_LEAST.items() if is_known and name in metrics}
    return own | dict(values["at_least"])


@contextmanager
def _sides(
    context: click.Context, values: Mapping[str, Any], suite: Suite
) -> Iterator[tuple[list[ServerSide], dict[str, str]]]:
    """Who is asked, and what they are. Raises UsageError, Failure, or click's Exit where an engine does not start."""
    engine, vs = engine_arguments(context), values["vs"]
    is_vs_url = vs is not None and vs.startswith(("http://", "https://"))
    others = [word for word in engine if word.startswith("--") and word != "--seed"]
    if values["url"] is not None and others:
        raise click.UsageError(f"{others[0]} is for an engine of its own: leave --url out")
    if values["url"] is not None and vs is not None and not is_vs_url:
        raise click.UsageError(f"--vs {vs} is for an engine of its own, and --url has none: give an address")

    besides = [] if vs is None or is_vs_url else _words(vs)

    def side(name: str, server: ServerClient, model: str) -> ServerSide:
        return ServerSide(name, server, model, values["thinking"])

    with ExitStack() as stack:
        if values["url"] is not None:
            server = named_server("--url", values["url"], "LUCE_API_KEY")
            name = asked_model(server, values["model_name"], "--name")
            sides, what = [side("url", server, name)], {"url": server.url}
        else:
            start = ["--log-level", "warn", *engine, *_room(values, suite)]
            sides = [side("luce", stack.enter_context(own_server(start)), UNNAMED_MODEL)]
            what = {"luce": str(values["model"] or "the packaged model")}
        if is_vs_url:
            other = named_server("--vs", vs, "LUCE_VS_API_KEY")
            sides.append(side("vs", other, asked_model(other, values["vs_name"], "--vs-name")))
            what["vs"] = other.url
        elif vs is not None:
            sides.append(side("vs", stack.enter_context(own_server([*start, *besides])), UNNAMED_MODEL))
            what["vs"] = f"the same with {vs}"
        yield sides, what


def _words(options: str) -> list[str]:
    try:
        words = shlex.split(options)
    except ValueError as error:
        raise click.UsageError(f"--vs {options}: {error}") from None
    if not words or not words[0].startswith("--"):
        raise click.UsageError(f"--vs {options!r} is neither an address nor options: http://… or '--cache-type-k q4_0'")
    return words


def _room(values: Mapping[str, Any], suite: Suite) -> list[str]:
    """For the longest prompts, where nothing else was said."""
    n_ctx = max(suite.lengths) * 5 // 4 + _CTX_BESIDE + values["thinking"]
    room = ["--ctx", str(max(n_ctx, 8192))] if values["ctx"] is None and values["pool"] is None else []
    return room + (["--lanes", str(values["parallel"])] if values["parallel"] > 1 and values["lanes"] is None else [])
