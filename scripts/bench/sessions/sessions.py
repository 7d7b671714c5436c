#!/usr/bin/env python3
"""What agents' sessions are like, and what each feature brings them, alone and together.

TRANSCRIPTS are session files of Claude Code (~/.claude/projects) or rollout files of Codex (~/.codex/sessions), or
folders with such files; without any, the made-up ones in tests/data/transcripts.

First the distributions: lengths of prompts and answers, how much of a prompt was there before, pauses of people and
tools. Then two features (--features) are taken apart: the same sessions run --agents at once, at their recorded pace
(--pace scales the pauses), with neither feature, with the one, the other and both, in turns, each on a fresh engine.
Everything is shown as how many times faster than with neither. Answers are as long as the recorded ones, and what the
next request holds is the recorded text (as in replay/agent_replay.py).

Nothing leaves this machine.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from luce.supervisor import RequestError, StartError, SupervisorConfig  # noqa: E402
from luce.supervisor.cli.entry import say  # noqa: E402
from scripts.bench.harness import TINY, write_json  # noqa: E402
from scripts.bench.replay.agent_replay import DEFAULT_TRANSCRIPTS, prepare, read_all  # noqa: E402
from scripts.bench.replay.prompts import Setting  # noqa: E402
from scripts.bench.sessions.distributions import distributions_of  # noqa: E402
from scripts.bench.sessions.features import FEATURES, Parts  # noqa: E402
from scripts.bench.sessions.isolation import Arm, Plan, Played, Rounds, measure  # noqa: E402
from scripts.bench.sessions.report import print_distributions, print_isolation, save_plot, to_json  # noqa: E402

TINY_DRAFT = ROOT / "models" / "luce-tiny-dflash-Q8_0.gguf"
SCORER = ROOT / "tests" / "data" / "models" / "luce-tiny-scorer-Q8_0.gguf"


class TwoFeatures(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """A,B of FEATURES; none: only the distributions."""

    name = "features"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str] | None:
        if not isinstance(value, str) or value == "none":
            return value if isinstance(value, tuple) else None
        names = value.split(",")
        unknown = [name for name in names if name not in FEATURES]
        if unknown or len(names) != 2 or names[0] == names[1]:
            self.fail(f"{value!r}: give two of {', '.join(FEATURES)}, with a comma between them", param, ctx)
        return names[0], names[1]


@click.command(help=__doc__, context_settings={"show_default": True, "max_content_width": 100})
@click.argument("transcripts", nargs=-1, type=click.Path(path_type=Path, exists=True))
@click.option("--features", type=TwoFeatures(), default="prefix-cache,speculation", metavar="A,B",
              help=f"two of {', '.join(FEATURES)}; none: only the distributions")  # fmt: skip
@click.option("--agents", type=click.IntRange(min=1), default=3, help="sessions at once, and lanes")
@click.option("--pace", type=click.FloatRange(min=0), default=0.0, help="recorded pauses, scaled; 60 s at most each")
@click.option("--rounds", type=click.IntRange(min=1), default=3, help="passes of each of the four")
@click.option("--model", type=click.Path(path_type=Path, exists=True), help="GGUF file; default: the packaged model")
@click.option("--draft", type=click.Path(path_type=Path, exists=True), help="its drafter; default: the packaged one")
@click.option("--scorer", type=click.Path(path_type=Path, exists=True), default=SCORER, help="of sparse-prefill",
              show_default=False)  # fmt: skip
@click.option("--bounded", type=click.IntRange(min=64), default=2048, help="tokens on the device with bounded-kv")
@click.option("--ctx", type=click.IntRange(min=64), default=8192, help="context; a conversation ends where it is full")
@click.option("--max-tokens", type=click.IntRange(min=1), default=256, help="longest answer")
@click.option("--limit", type=click.IntRange(min=1), help="replay so many sessions at most")
@click.option("--system-bytes", type=click.IntRange(min=0), default=8192, help="of a made-up system prompt")
@click.option("--threads", type=click.IntRange(min=1), help="default: the daemon's")
@click.option("--gpu-layers", type=int, help="default: the daemon's")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=600.0, help="s a request may take")
@click.option("--json", type=click.Path(path_type=Path), metavar="FILE", help="every figure and sample")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="the distributions as PNG, SVG or PDF")
def main(**options: Any) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = 140
    pyplot = None
    if options["plot"] is not None:
        from luce.supervisor.cli.pictures import open_pyplot

        pyplot = open_pyplot()
    sessions = read_all(options["transcripts"] or (DEFAULT_TRANSCRIPTS,), options["limit"], console)
    if not sessions:
        raise click.ClickException("there is no request in these transcripts")
    config = SupervisorConfig(
        model=options["model"] or TINY, ctx=options["ctx"], lanes=options["agents"],
        threads=options["threads"], gpu_layers=options["gpu_layers"], log_level="error",
    )  # fmt: skip
    prepared = prepare(config, sessions, Setting(system_bytes=options["system_bytes"]), options["max_tokens"])
    found = distributions_of(prepared)
    if found.n_requests == 0:
        raise click.ClickException(f"no request fits --ctx {options['ctx']}")
    print_distributions(console, found)
    features, rounds = options["features"] or ("", ""), Rounds()
    if options["features"] is not None:
        draft = TINY_DRAFT if options["model"] is None and options["draft"] is None else options["draft"]
        parts = Parts(draft, options["bounded"], options["scorer"], options["agents"])
        plan = Plan(options["max_tokens"], options["agents"], options["pace"], options["timeout"])

        def report(turn: int, chosen: Arm, played: Played) -> None:
            on = " and ".join(name for name, is_on in zip(features, chosen, strict=True) if is_on) or "neither"
            say(f"round {turn + 1} of {options['rounds']}, {on}: {played.wall_s:.1f} s")

        try:
            rounds = asyncio.run(measure(config, features, parts, prepared, plan, options["rounds"], report))
        except (StartError, RequestError, TimeoutError) as error:
            raise click.ClickException(str(error)) from error
        print_isolation(console, features, rounds)
    shown = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()
             if name != "transcripts"}  # fmt: skip
    write_json(options["json"], to_json(found, features, rounds, shown))
    if pyplot is not None:
        save_plot(pyplot, found, options["plot"])
    failures = [failure for arms in rounds for played in arms.values() for failure in played.failures]
    for failure in failures:
        say(f"failed: {failure}")
    if failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
