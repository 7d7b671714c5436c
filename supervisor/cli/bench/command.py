"""`luce bench`: what this machine does with a model, or a server that runs. The command line; starts and shows."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from luce.supervisor.cli.bench.measure import (
    SPECULATION_PROMPTS,
    Side,
    measure_depths,
    measure_speculation,
)
from luce.supervisor.cli.bench.report import Results, print_results, to_json
from luce.supervisor.cli.entry import EXIT_OK, EXIT_REFUSED, Failure
from luce.supervisor.cli.numbers import Tokens
from luce.supervisor.cli.options import engine_options
from luce.supervisor.cli.output import print_tables, write_output
from luce.supervisor.cli.progress import progress
from luce.supervisor.cli.server_client import CHAT_PATH, TEXT_PATH, ServerError
from luce.supervisor.cli.servers import asked_model, end_by_signals, engine_arguments, named_server, own_server

_EPILOG = """\b
What is measured, at each depth:
  cold      time to the first token of a new prompt
  read/s    prompt tokens per second
  warm      time to the first token of the conversation's next turn, with a cached prefix
  decoded/s tokens per second after the first one, at this depth
Without --url also the effect of drafts, on three prompts with and without them.
Everything is measured over HTTP. Figures are medians; servers and settings alternate.

\b
Examples:
  luce bench                                       the packaged model on this machine
  luce bench --model m.gguf --depths 512,8K,32K --ctx 40K --plot m.png
  luce bench --url http://127.0.0.1:8080           a running server: luce, llama-server, vLLM …
  luce bench --model m.gguf --vs http://127.0.0.1:8081     side by side
  luce bench --json >today.json

\b
Exit codes: 0 done, 1 a server refused or broke off, 2 the start failed, 64 bad arguments.
"""


class Depths(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """Numbers of tokens with commas between them, 8K for 8192."""

    name = "depths"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if not isinstance(value, str):
            return tuple(value)
        tokens = Tokens(1, (1 << 31) - 1)
        return tuple(dict.fromkeys(tokens.convert(word, param, ctx) for word in value.split(",")))


@click.command("bench", epilog=_EPILOG)
@click.option("--url", metavar="URL", help="Measure this server with OpenAI's API instead of starting an engine.")
@click.option("--vs", metavar="URL", help="Compare with this server; both are measured in turns.")
@click.option(
    "--depths",
    type=Depths(),
    default="64,1K,4K",
    show_default=True,
    metavar="N,…",
    help="Lengths of the prompts in tokens. Those that do not fit a server are left out.",
)
@click.option("-n", "n", type=click.IntRange(2, 1 << 20), default=64, show_default=True, help="Tokens of an answer.")
@click.option(
    "--rounds",
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    metavar="N",
    help="Number of measurements per figure.",
)
@click.option(
    "--speculation/--no-speculation",
    default=True,
    help="Also measure a second engine without drafts, for comparison. It needs memory for another model.",
)
@click.option(
    "--api",
    type=click.Choice(["chat", "completions"]),
    default="chat",
    show_default=True,
    help="The endpoint to use; completions for servers without a chat template.",
)
@click.option("--name", "model_name", metavar="NAME", help="Name of the model at --url. Default: the first one.")
@click.option("--vs-name", metavar="NAME", help="Name of the model at --vs. Default: the first one.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print settings, medians and every sample as JSON instead of tables."
)
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw the results into a PNG, SVG or PDF file."
)
@engine_options
@click.pass_context
def command(context: click.Context, /, **values: Any) -> int:
    """Measure a model's speed on this machine: prompts, answers and cached prompts.

    Without --url it starts an engine with the options below. Keys come from LUCE_API_KEY, the key of --vs from
    LUCE_VS_API_KEY.
    """
    engine = engine_arguments(context)
    if values["url"] is not None and engine:
        raise click.UsageError(f"{engine[0]} is for an engine of its own: leave --url out")
    pyplot = None
    if values["plot"] is not None:
        from luce.supervisor.cli.bench.plot import save_plot
        from luce.supervisor.cli.pictures import open_pyplot

        pyplot = open_pyplot()
    end_by_signals()
    try:
        results = _measure(values, engine)
    except ServerError as error:
        raise Failure(str(error), EXIT_REFUSED) from None
    if not results.depths:
        raise Failure("; ".join(["nothing could be measured", *results.notes]), EXIT_REFUSED)
    if values["as_json"]:
        write_output((json.dumps(to_json(results), indent=2) + "\n").encode())
    else:
        print_tables(lambda console: print_results(console, results))
    if pyplot is not None:
        save_plot(pyplot, results, values["plot"])
    return EXIT_OK


def _measure(values: dict[str, Any], engine: list[str]) -> Results:
    """Raises ServerError."""
    path = CHAT_PATH if values["api"] == "chat" else TEXT_PATH
    settings = {name: values[name] for name in ("depths", "n", "rounds", "api")} | {"engine": engine}
    rounds, n, depths = values["rounds"], values["n"], values["depths"]
    with ExitStack() as stack:
        plain = None
        if values["url"] is not None:
            server = named_server("--url", values["url"], "LUCE_API_KEY")
            sides = [Side("url", server, path, asked_model(server, values["model_name"], "--name"))]
            what = {"url": server.url}
        else:
            start = ["--log-level", "warn", *engine]
            sides = [Side("luce", stack.enter_context(own_server(start)), path)]
            what = {"luce": str(values["model"] or "the packaged model")}
            if values["speculation"] and values["draft_max"] != 0:
                start += ["--draft-max", "0"]
                if values["trace"] is not None:
                    start += ["--trace", f"{values['trace']}.plain"]  # each engine writes a file of its own
                plain = Side("plain", stack.enter_context(own_server(start)), path)
        if values["vs"] is not None:
            other = named_server("--vs", values["vs"], "LUCE_VS_API_KEY")
            sides.append(Side("vs", other, path, asked_model(other, values["vs_name"], "--vs-name")))
            what["vs"] = other.url
        results = Results(what, settings)
        n_steps = len(depths) * rounds * len(sides) + (rounds * len(SPECULATION_PROMPTS) if plain else 0)
        with progress("measuring", n_steps) as advance:
            for at in measure_depths(sides, depths, rounds, n, results.notes.append):
                results.depths.append(at)
                advance(f"{at.side}: {at.depth:,} tokens, {at.turn + 1} of {rounds}")
            if plain is not None:
                for sample in measure_speculation(sides[0], plain, rounds, n):
                    results.speculation.append(sample)
                    advance(f"speculation: {sample.prompt}, {sample.turn} of {rounds}")
    return results
