#!/usr/bin/env python3
"""What routers bring many replicas, before there are that many: agents' sessions, resampled from transcripts, on
replicas that cost what real ones were measured to cost (scripts/sim/prices.toml).

TRANSCRIPTS are session files of Claude Code (~/.claude/projects) or rollout files of Codex (~/.codex/sessions), or
folders with such files; without any, the made-up ones in tests/data/transcripts.

\b
random        any replica
two-choices   of two at random the one with fewer open requests (Ray Serve's default)
sticky        each session at the replica that its key draws
prefix-aware  the fewest tokens to read and tokens open there, by KV events (--overlap weighs them)
ours          the least of waiting and reading in seconds, by digests that replicas tell every --period

\b
calm            nothing fails
failures        replicas die (--deaths an hour) and lose device and host memory; answers go on elsewhere
restart         all are restarted, a tenth at a time; each drains first
restart-parked  the same, and what they know is put into the object store first

\b
Some of each, within seconds:
    scripts/sim/simulate.py --replicas 10 --minutes 10
What one parameter does to one router (any of --help, or a price of prices.toml):
    scripts/sim/simulate.py --replicas 100 --routers ours --vary period=0.5,2,10,30
Another machine:
    scripts/sim/simulate.py --prices 35b-a3b-h100 --set host_bytes=256e9

The load is a share of what all replicas could do with their lanes full, if no token were read twice. Agents wait for
their answers before they send more: a router that reads too much gets fewer requests, not an endless queue.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from luce.supervisor import SupervisorConfig  # noqa: E402
from luce.supervisor.cli.entry import say  # noqa: E402
from scripts.bench.harness import TINY, write_json  # noqa: E402
from scripts.bench.replay.agent_replay import DEFAULT_TRANSCRIPTS, prepare, read_all  # noqa: E402
from scripts.bench.replay.prompts import Setting  # noqa: E402
from scripts.sim.digests import DigestSetting  # noqa: E402
from scripts.sim.figures import Figures  # noqa: E402
from scripts.sim.outages import SCENARIOS  # noqa: E402
from scripts.sim.prices import PriceError, Prices, load_prices, parse_override  # noqa: E402
from scripts.sim.report import print_results, save_plot, to_json  # noqa: E402
from scripts.sim.routers import ROUTERS, Weights  # noqa: E402
from scripts.sim.runs import Run, UnknownParameterError, combinations  # noqa: E402
from scripts.sim.simulation import Plan, Simulation  # noqa: E402
from scripts.sim.trace_shape import MEAN_PROMPT, MEAN_TURNS, Shape, shape_of, stretched  # noqa: E402

DIGEST, WEIGHTS = DigestSetting(), Weights()


class Names(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """Some of a list, with commas; `all`."""

    name = "names"

    def __init__(self, known: tuple[str, ...]) -> None:
        self.known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        names = self.known if value == "all" else tuple(value.split(",")) if isinstance(value, str) else value
        unknown = [name for name in names if name not in self.known]
        if unknown:
            self.fail(f"{unknown[0]!r}: give some of {', '.join(self.known)}, with commas, or all", param, ctx)
        return tuple(names)


class Counts(click.ParamType):  # type: ignore[type-arg]
    """Numbers with commas."""

    name = "counts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if not isinstance(value, str):
            return tuple(value)
        if not all(part.isdecimal() and int(part) > 0 for part in value.split(",")):
            self.fail(f"{value!r}: give numbers of at least 1, with commas", param, ctx)
        return tuple(int(part) for part in value.split(","))


def shape_from(transcripts: tuple[Path, ...], turns: float, prompt_tokens: float, console: Console) -> Shape:
    """Raises click.ClickException if there is nothing to draw from."""
    sessions = read_all(transcripts or (DEFAULT_TRANSCRIPTS,), None, console)
    prepared = prepare(SupervisorConfig(model=TINY, ctx=262_144, lanes=1), sessions, Setting(system_bytes=256), 1)
    try:
        return stretched(shape_of(prepared, turns), prompt_tokens)
    except ValueError as error:
        raise click.ClickException(str(error)) from error


def prices_from(name: str, overrides: tuple[str, ...]) -> Prices:
    try:
        return load_prices(name, dict(map(parse_override, overrides)))
    except PriceError as error:
        raise click.ClickException(str(error)) from error


def varied_from(text: str | None) -> tuple[str, list[Any]] | None:
    """NAME=V,V as values. Raises click.ClickException."""
    if text is None:
        return None
    name, equals, values = text.partition("=")
    if not equals or not values:
        raise click.ClickException(f"--vary {text}: give NAME=VALUE,VALUE,…")
    return name, [_number(value) for value in values.split(",")]


def _number(text: str) -> Any:
    try:
        value = float(text)
    except ValueError:
        return text
    return int(value) if value.is_integer() else value


def plan_from(options: dict[str, Any]) -> Plan:
    return Plan(
        router="", n_replicas=1, load=options["load"], duration_s=options["minutes"] * 60,
        warm_up_s=options["warm_up"] * 60, tick_s=options["tick"], seed=options["seed"], store=options["store"],
        digest=DigestSetting(options["digest"], options["digest_bytes"], options["stride"], options["period"]),
        weights=Weights(
            wait=options["wait"], others=options["others"], lane_s=options["lane"], stick_s=options["stick"],
            own=options["own"], overlap=options["overlap"],
        ),
    )  # fmt: skip


@click.command(help=__doc__, context_settings={"show_default": True, "max_content_width": 110})
@click.argument("transcripts", nargs=-1, type=click.Path(path_type=Path, exists=True))
@click.option("--replicas", type=Counts(), default="10,100", help="how many, with commas")
@click.option("--routers", type=Names(tuple(ROUTERS)), default="all", help="some of those above, with commas")
@click.option("--scenarios", type=Names(SCENARIOS), default="calm", help="some of those above, with commas; all")
@click.option("--load", type=click.FloatRange(min=0, min_open=True), default=0.7, help="share of what they could do")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=20.0, help="simulated, and counted")
@click.option("--warm-up", type=click.FloatRange(min=0), default=5.0, help="minutes before, not counted")
@click.option(
    "--tick", type=click.FloatRange(min=0, min_open=True), default=0.25, help="s; routers see the last one's end"
)
@click.option("--seed", type=int, default=1, help="the same seed gives the same figures")
@click.option("--prices", default="27b-h100", help="a table of prices.toml")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="another price; may be repeated")
@click.option("--turns", type=click.FloatRange(min=1), default=MEAN_TURNS, help="of a session, in the mean")
@click.option("--prompt-tokens", type=click.FloatRange(min=1), default=MEAN_PROMPT, help="of a prompt in the mean, if"
              " none was compacted: the tokens of turns are scaled")  # fmt: skip
@click.option("--store", type=click.Choice(["none", "parked", "behind"]), default="none", help="what the object store"
              " has: nothing, what replicas park before a restart, every turn")  # fmt: skip
@click.option("--digest", type=click.Choice(["bloom", "set"]), default=DIGEST.kind, help="what replicas tell")
@click.option("--digest-bytes", type=click.IntRange(min=8), default=DIGEST.n_bytes, help="of each digest")
@click.option("--stride", type=click.IntRange(min=64), default=DIGEST.stride, help="tokens to a name in it")
@click.option(
    "--period", type=click.FloatRange(min=0, min_open=True), default=DIGEST.period_s, help="s between digests"
)
@click.option(
    "--wait", type=click.FloatRange(min=0), default=WEIGHTS.wait, help="a second of waiting, in seconds of reading"
)
@click.option(
    "--others", type=click.FloatRange(min=0), default=WEIGHTS.others, help="of reading, for each request open there"
)
@click.option("--lane", type=click.FloatRange(min=0), default=WEIGHTS.lane_s, help="an open request, in seconds")
@click.option(
    "--stick", type=click.FloatRange(min=0), default=WEIGHTS.stick_s, help="s by which another must be cheaper"
)
@click.option(
    "--own", type=click.FloatRange(0, 1), default=WEIGHTS.own, help="how often a router knows what was sent since"
)
@click.option("--overlap", type=click.FloatRange(min=0), default=WEIGHTS.overlap, help="of prefix-aware: a token to"
              " read, in tokens open")  # fmt: skip
@click.option("--deaths", type=click.FloatRange(min=0), default=1.0, help="of a replica an hour, where replicas fail")
@click.option("--vary", metavar="NAME=V,V", help="one of these options (without --), or a price, by several values")
@click.option("--json", type=click.Path(path_type=Path), metavar="FILE", help="every figure")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="PNG, SVG or PDF")
def main(transcripts: tuple[Path, ...], **options: Any) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = 160
    pyplot = None
    if options["plot"] is not None:
        from luce.supervisor.cli.pictures import open_pyplot

        pyplot = open_pyplot()
    prices, varied = prices_from(options["prices"], options["overrides"]), varied_from(options["vary"])
    shape = shape_from(transcripts, options["turns"], options["prompt_tokens"], console)
    results: list[tuple[Run, Figures]] = []
    try:
        for run in combinations(
            plan_from(options), prices, replicas=options["replicas"], routers=options["routers"],
            scenarios=options["scenarios"], deaths_per_hour=options["deaths"], varied=varied,
        ):  # fmt: skip
            figures = Simulation(run.plan, run.prices, shape).run()
            results.append((run, figures))
            value = "" if varied is None else f", {varied[0]} {run.varied}"
            say(f"{run.scenario}, {run.plan.n_replicas:,} replicas, {run.plan.router}{value}: {figures.summary}")
            if figures.n_crowded_out:
                say(f"{figures.n_crowded_out:,} texts left for want of a slot: hit shares are a little too low")
    except UnknownParameterError as error:
        raise click.ClickException(str(error)) from error
    print_results(console, results, None if varied is None else varied[0])
    shown = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    write_json(options["json"], to_json(results, shown))
    if pyplot is not None:
        save_plot(pyplot, results, None if varied is None else varied[0], options["plot"])


if __name__ == "__main__":
    main()
